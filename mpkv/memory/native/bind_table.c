#include "bind_table.h"

#include <string.h>

/* What a batch does with key number `i`; false ends the batch before that key. */
typedef bool key_action(const struct ledger *ledger, const struct key *key, unsigned char *out,
                        size_t i);

/* Keys whose memory is fetched at once: most of a batch's time would be spent waiting for
 * one bucket and one entry after the other. */
#define KEYS_AHEAD 16

static Py_ssize_t each_key(const struct ledger *ledger, const Py_buffer *keys, unsigned char *out,
                           key_action *action)
{
    size_t count = (size_t)keys->len / ledger->key_size;
    const unsigned char *bytes = keys->buf;
    struct key window[KEYS_AHEAD];
    for (size_t start = 0; start < count; start += KEYS_AHEAD) {
        size_t ahead = count - start < KEYS_AHEAD ? count - start : KEYS_AHEAD;
        for (size_t i = 0; i < ahead; i++) {
            window[i] = key_load(ledger, bytes + (start + i) * ledger->key_size);
            prefetch_bucket(ledger, &window[i]);
        }
        for (size_t i = 0; i < ahead; i++)
            prefetch_entry(ledger, &window[i]);
        for (size_t i = 0; i < ahead; i++)
            if (!action(ledger, &window[i], out, start + i))
                return (Py_ssize_t)(start + i);
    }
    return (Py_ssize_t)count;
}

/* Run `action` over the keys and return its output, `out_size` bytes for each key done. */
static PyObject *batch(PyObject *object, PyObject *source, Py_ssize_t out_size,
                       key_action *action, Py_ssize_t *done)
{
    struct ledger_object *self = (struct ledger_object *)object;
    Py_buffer keys;
    if (!ledger_is_open(self) ||
        !hold_view(source, "keys", (Py_ssize_t)self->ledger.key_size, &keys))
        return NULL;
    Py_ssize_t count = keys.len / (Py_ssize_t)self->ledger.key_size;
    PyObject *result = PyBytes_FromStringAndSize(NULL, count * out_size);
    if (result == NULL) {
        PyBuffer_Release(&keys);
        return NULL;
    }
    char *out = PyBytes_AsString(result);
    PyThreadState *thread = begin_call(self);
    *done = each_key(&self->ledger, &keys, (unsigned char *)out, action);
    end_call(self, thread);
    PyBuffer_Release(&keys);
    if (*done == count || out_size == 0)
        return result;
    PyObject *shorter = PyBytes_FromStringAndSize(out, *done * out_size);
    Py_DECREF(result);
    return shorter;
}

static void put_slot(unsigned char *out, size_t i, uint64_t slot)
{
    memcpy(out + i * sizeof slot, &slot, sizeof slot);
}

static bool pin_each(const struct ledger *ledger, const struct key *key, unsigned char *out,
                     size_t i)
{
    put_slot(out, i, table_pin(ledger, key));
    return true;
}

static bool pin_while_held(const struct ledger *ledger, const struct key *key, unsigned char *out,
                           size_t i)
{
    uint64_t slot = table_pin(ledger, key);
    put_slot(out, i, slot);
    return slot != NO_SLOT;
}

static bool contains_each(const struct ledger *ledger, const struct key *key, unsigned char *out,
                          size_t i)
{
    out[i] = table_find(ledger, key) != NO_BLOCK;
    return true;
}

static bool is_held(const struct ledger *ledger, const struct key *key, unsigned char *out,
                    size_t i)
{
    (void)out, (void)i;
    return table_find(ledger, key) != NO_BLOCK;
}

static bool touch_each(const struct ledger *ledger, const struct key *key, unsigned char *out,
                       size_t i)
{
    uint32_t block = table_touch(ledger, key);
    memcpy(out + i * sizeof block, &block, sizeof block);
    return true;
}

/* The engine's own visits are told at once; those of others it finds where it looks. */
static void keep_visits(struct ledger_object *self, PyObject *slots)
{
    const char *packed = PyBytes_AsString(slots);
    for (Py_ssize_t at = 0; at < PyBytes_Size(slots); at += (Py_ssize_t)sizeof(uint64_t)) {
        uint64_t slot;
        memcpy(&slot, packed + at, sizeof slot);
        keep_visit(self, slot_block(slot));
    }
}

PyObject *ledger_pin_many(PyObject *object, PyObject *keys)
{
    Py_ssize_t done;
    PyObject *slots = batch(object, keys, sizeof(uint64_t), pin_each, &done);
    if (slots != NULL)
        keep_visits((struct ledger_object *)object, slots);
    return slots;
}

/* How many leading slots name different blocks; the others are unpinned. Pins of one block are
 * few: whoever lists a key thousands of times must not use them up for everybody. */
static Py_ssize_t keep_different(const struct ledger *ledger, const char *slots, Py_ssize_t count,
                                 unsigned char *seen)
{
    Py_ssize_t kept = 0;
    /* Without memory to tell which are different, none is kept. */
    bool repeated = seen == NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t slot;
        memcpy(&slot, slots + i * (Py_ssize_t)sizeof slot, sizeof slot);
        uint32_t block = slot_block(slot);
        repeated = repeated || (seen[block / 8] >> block % 8 & 1);
        if (repeated) {
            (void)table_unpin(ledger, slot);
        } else {
            seen[block / 8] |= (unsigned char)(1u << block % 8);
            kept++;
        }
    }
    return kept;
}

PyObject *ledger_pin_prefix(PyObject *object, PyObject *keys)
{
    Py_ssize_t done;
    PyObject *slots = batch(object, keys, sizeof(uint64_t), pin_while_held, &done);
    if (slots == NULL)
        return NULL;
    const struct ledger *ledger = &((struct ledger_object *)object)->ledger;
    unsigned char *seen = PyMem_Calloc(ledger->blocks / 8 + 1, 1);
    Py_ssize_t kept = keep_different(ledger, PyBytes_AsString(slots), done, seen);
    PyMem_Free(seen);
    if (kept == done)
        return slots;
    PyObject *shorter =
        PyBytes_FromStringAndSize(PyBytes_AsString(slots), kept * (Py_ssize_t)sizeof(uint64_t));
    Py_DECREF(slots);
    return shorter;
}

PyObject *ledger_contains_many(PyObject *object, PyObject *keys)
{
    Py_ssize_t done;
    return batch(object, keys, 1, contains_each, &done);
}

PyObject *ledger_lookup_prefix(PyObject *object, PyObject *keys)
{
    Py_ssize_t done;
    PyObject *nothing = batch(object, keys, 0, is_held, &done);
    if (nothing == NULL)
        return NULL;
    Py_DECREF(nothing);
    return PyLong_FromSsize_t(done);
}

PyObject *ledger_touch_many(PyObject *object, PyObject *keys)
{
    Py_ssize_t done;
    PyObject *blocks = batch(object, keys, sizeof(uint32_t), touch_each, &done);
    if (blocks == NULL)
        return NULL;
    const char *packed = PyBytes_AsString(blocks);
    for (Py_ssize_t i = 0; i < done; i++) {
        uint32_t block;
        memcpy(&block, packed + i * (Py_ssize_t)sizeof block, sizeof block);
        keep_visit((struct ledger_object *)object, block);
    }
    Py_DECREF(blocks);
    Py_RETURN_NONE;
}

PyObject *ledger_find(PyObject *object, PyObject *argument)
{
    struct ledger_object *self = (struct ledger_object *)object;
    Py_buffer key;
    if (!ledger_is_open(self) || !hold_view(argument, "key", 1, &key))
        return NULL;
    if (key.len != (Py_ssize_t)self->ledger.key_size) {
        PyErr_Format(PyExc_ValueError, "Expected a key of %u bytes, found %zd.",
                     self->ledger.key_size, key.len);
        PyBuffer_Release(&key);
        return NULL;
    }
    struct key loaded = key_load(&self->ledger, key.buf);
    PyBuffer_Release(&key);
    uint32_t block = table_find(&self->ledger, &loaded);
    return PyLong_FromLongLong(block == NO_BLOCK ? -1 : (long long)block);
}

PyObject *ledger_pin_slots(PyObject *object, PyObject *source)
{
    struct ledger_object *self = (struct ledger_object *)object;
    Py_buffer slots;
    if (!ledger_is_open(self) || !hold_view(source, "slots", sizeof(uint64_t), &slots))
        return NULL;
    size_t count = (size_t)slots.len / sizeof(uint64_t);
    PyObject *pinned = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count);
    if (pinned != NULL) {
        char *out = PyBytes_AsString(pinned);
        PyThreadState *thread = begin_call(self);
        for (size_t i = 0; i < count; i++)
            out[i] = table_pin_slot(&self->ledger, slot_at(&slots, i));
        end_call(self, thread);
    }
    PyBuffer_Release(&slots);
    return pinned;
}

PyObject *ledger_keys_of(PyObject *object, PyObject *source)
{
    struct ledger_object *self = (struct ledger_object *)object;
    Py_buffer slots;
    if (!ledger_is_open(self) || !hold_view(source, "slots", sizeof(uint64_t), &slots))
        return NULL;
    const struct ledger *ledger = &self->ledger;
    size_t count = (size_t)slots.len / sizeof(uint64_t);
    PyObject *keys = NULL;
    bool inside = true;
    for (size_t i = 0; i < count && inside; i++)
        inside = slot_block(slot_at(&slots, i)) < ledger->blocks;
    if (!inside)
        PyErr_SetString(PyExc_ValueError, "A slot is of no block of this ledger.");
    else
        keys = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * ledger->key_size));
    if (keys != NULL) {
        unsigned char *out = (unsigned char *)PyBytes_AsString(keys);
        for (size_t i = 0; i < count; i++)
            table_copy_key(ledger, slot_block(slot_at(&slots, i)), out + i * ledger->key_size);
    }
    PyBuffer_Release(&slots);
    return keys;
}

/* The slots of READY blocks whose generation is not the one that is listed for them. */
static size_t find_besides(const struct ledger *ledger, const uint32_t *generations,
                           uint64_t *found)
{
    size_t count = 0;
    for (uint32_t block = 0; block < ledger->blocks; block++) {
        uint64_t slot = table_ready_slot(ledger, block);
        if (slot != NO_SLOT && slot_generation(slot) != generations[block])
            found[count++] = slot;
    }
    return count;
}

PyObject *ledger_ready_besides(PyObject *object, PyObject *source)
{
    struct ledger_object *self = (struct ledger_object *)object;
    Py_buffer generations;
    if (!ledger_is_open(self) ||
        !hold_view(source, "generations", sizeof(uint32_t), &generations))
        return NULL;
    PyObject *slots = NULL;
    uint32_t blocks = self->ledger.blocks;
    if ((size_t)generations.len != blocks * sizeof(uint32_t)) {
        PyErr_Format(PyExc_ValueError, "Expected %u generations, found %zd bytes of them.", blocks,
                     generations.len);
        PyBuffer_Release(&generations);
        return NULL;
    }
    /* Arrays of their own: the memory of a buffer need not be aligned, nor stay the same. */
    uint32_t *known = PyMem_Malloc(blocks * sizeof *known);
    uint64_t *found = PyMem_Malloc(blocks * sizeof *found);
    if (known == NULL || found == NULL) {
        PyErr_NoMemory();
    } else {
        memcpy(known, generations.buf, blocks * sizeof *known);
        PyThreadState *thread = begin_call(self);
        size_t count = find_besides(&self->ledger, known, found);
        end_call(self, thread);
        slots = PyBytes_FromStringAndSize((const char *)found,
                                          (Py_ssize_t)(count * sizeof *found));
    }
    PyMem_Free(known);
    PyMem_Free(found);
    PyBuffer_Release(&generations);
    return slots;
}

PyObject *ledger_unpin_many(PyObject *object, PyObject *source)
{
    struct ledger_object *self = (struct ledger_object *)object;
    Py_buffer slots;
    if (!ledger_is_open(self) || !hold_view(source, "slots", sizeof(uint64_t), &slots))
        return NULL;
    size_t held = 0;
    PyThreadState *thread = begin_call(self);
    for (size_t i = 0; i < (size_t)slots.len / sizeof(uint64_t); i++)
        held += table_unpin(&self->ledger, slot_at(&slots, i));
    end_call(self, thread);
    PyBuffer_Release(&slots);
    return PyLong_FromSize_t(held);
}

PyObject *ledger_counts(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct ledger_object *self = (struct ledger_object *)object;
    if (!ledger_is_open(self))
        return NULL;
    PyThreadState *thread = begin_call(self);
    struct table_counts counts = table_count(&self->ledger);
    end_call(self, thread);
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "free", counts.states[BLOCK_FREE],
                         "landing", counts.states[BLOCK_LANDING], "filling",
                         counts.states[BLOCK_FILLING], "ready", counts.states[BLOCK_READY],
                         "draining", counts.states[BLOCK_DRAINING], "control_pins",
                         counts.control_pins, "engine_pins", counts.engine_pins);
}
