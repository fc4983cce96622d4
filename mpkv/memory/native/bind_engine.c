#include "bind_engine.h"

#include <string.h>

static bool is_engine(const struct ledger_object *self)
{
    if (!ledger_is_open(self))
        return false;
    if (!self->is_engine) {
        PyErr_SetString(PyExc_PermissionError,
                        "Only the process that created the ledger may change its blocks.");
        return false;
    }
    return true;
}

/* The engine's private lists have no lock; without the GIL a second thread would wreck
 * them, so it is turned away. */
static bool may_write(const struct ledger_object *self)
{
    if (!is_engine(self))
        return false;
    if (self->writing) {
        PyErr_SetString(PyExc_RuntimeError,
                        "The ledger has one writer, and another thread is writing.");
        return false;
    }
    return true;
}

/* With the GIL: others may visit meanwhile. */
static void note_visits(struct ledger_object *self)
{
    engine_note_visits(&self->engine, self->visits, self->visit_count);
    self->visit_count = 0;
}

static PyThreadState *begin_writing(struct ledger_object *self)
{
    self->writing = true;
    return begin_call(self);
}

static void end_writing(struct ledger_object *self, PyThreadState *thread)
{
    end_call(self, thread);
    self->writing = false;
}

static PyObject *allocate_now(struct ledger_object *self, uint32_t count, enum block_state state,
                              uint32_t owner, PyObject *slots, PyObject *keys)
{
    /* An array of its own: the memory of a bytes object need not be aligned for words. */
    uint64_t *taken = PyMem_Malloc(count > 0 ? count * sizeof *taken : 1);
    if (taken == NULL)
        return PyErr_NoMemory();
    uint32_t evicted = 0;
    unsigned char *evicted_keys = (unsigned char *)PyBytes_AsString(keys);
    note_visits(self);
    PyThreadState *thread = begin_writing(self);
    bool enough = engine_allocate(&self->engine, count, state, owner, taken, evicted_keys,
                                  &evicted);
    end_writing(self, thread);
    if (enough)
        memcpy(PyBytes_AsString(slots), taken, count * sizeof *taken);
    PyMem_Free(taken);
    if (!enough)
        Py_RETURN_NONE;
    PyObject *only_evicted = PyBytes_FromStringAndSize(
        (const char *)evicted_keys, (Py_ssize_t)evicted * self->ledger.key_size);
    return only_evicted == NULL ? NULL : Py_BuildValue("(ON)", slots, only_evicted);
}

PyObject *ledger_allocate(PyObject *object, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"count", "state", "owner", NULL};
    struct ledger_object *self = (struct ledger_object *)object;
    Py_ssize_t count;
    int state;
    unsigned int owner = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "ni|I", names, &count, &state,
                                     &owner) ||
        !may_write(self))
        return NULL;
    if (count < 0 || (state != BLOCK_LANDING && state != BLOCK_FILLING)) {
        PyErr_Format(PyExc_ValueError,
                     "Expected a count of at least 0 and the state LANDING (%d) or FILLING (%d), "
                     "found count %zd and state %d.",
                     BLOCK_LANDING, BLOCK_FILLING, count, state);
        return NULL;
    }
    if (count > (Py_ssize_t)self->ledger.blocks)
        Py_RETURN_NONE;
    PyObject *slots = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(uint64_t));
    PyObject *keys = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)self->ledger.key_size);
    PyObject *result = NULL;
    if (slots != NULL && keys != NULL)
        result = allocate_now(self, (uint32_t)count, (enum block_state)state, owner, slots,
                              keys);
    Py_XDECREF(slots);
    Py_XDECREF(keys);
    return result;
}

static PyObject *publish_now(struct ledger_object *self, const Py_buffer *slots,
                             const Py_buffer *keys, bool pin, bool copies)
{
    size_t count = (size_t)slots->len / sizeof(uint64_t);
    if (count != (size_t)keys->len / self->ledger.key_size) {
        PyErr_Format(PyExc_ValueError, "Expected as many keys as slots, found %zu slots and %zu.",
                     count, (size_t)keys->len / self->ledger.key_size);
        return NULL;
    }
    PyObject *results = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count);
    uint32_t *published = PyMem_Malloc(count > 0 ? count * sizeof *published : 1);
    if (results == NULL || published == NULL) {
        Py_XDECREF(results);
        PyMem_Free(published);
        return published == NULL ? PyErr_NoMemory() : NULL;
    }
    char *out = PyBytes_AsString(results);
    const unsigned char *key_bytes = keys->buf;
    uint32_t done = 0;
    note_visits(self);
    PyThreadState *thread = begin_writing(self);
    for (size_t i = 0; i < count; i++) {
        struct key key = key_load(&self->ledger, key_bytes + i * self->ledger.key_size);
        uint64_t slot = slot_at(slots, i);
        out[i] = (char)engine_publish(&self->engine, slot, &key, pin);
        if (out[i] == PUBLISH_DONE)
            published[done++] = slot_block(slot);
    }
    engine_retain(&self->engine, published, done, copies);
    end_writing(self, thread);
    PyMem_Free(published);
    return results;
}

PyObject *ledger_publish(PyObject *object, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"slots", "keys", "pin", "copies", NULL};
    struct ledger_object *self = (struct ledger_object *)object;
    PyObject *slot_source, *key_source;
    int pin, copies = 0;
    Py_buffer slots, keys;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OOp|p", names, &slot_source,
                                     &key_source, &pin, &copies) ||
        !may_write(self) || !hold_view(slot_source, "slots", sizeof(uint64_t), &slots))
        return NULL;
    PyObject *results = NULL;
    if (hold_view(key_source, "keys", (Py_ssize_t)self->ledger.key_size, &keys)) {
        results = publish_now(self, &slots, &keys, pin != 0, copies != 0);
        PyBuffer_Release(&keys);
    }
    PyBuffer_Release(&slots);
    return results;
}

PyObject *ledger_free(PyObject *object, PyObject *source)
{
    struct ledger_object *self = (struct ledger_object *)object;
    Py_buffer slots;
    if (!may_write(self) || !hold_view(source, "slots", sizeof(uint64_t), &slots))
        return NULL;
    size_t accepted = 0;
    PyThreadState *thread = begin_writing(self);
    for (size_t i = 0; i < (size_t)slots.len / sizeof(uint64_t); i++)
        accepted += engine_free(&self->engine, slot_at(&slots, i));
    end_writing(self, thread);
    PyBuffer_Release(&slots);
    return PyLong_FromSize_t(accepted);
}

PyObject *ledger_drop_ready(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct ledger_object *self = (struct ledger_object *)object;
    if (!may_write(self))
        return NULL;
    self->visit_count = 0;
    PyThreadState *thread = begin_writing(self);
    uint32_t dropped = engine_drop_ready(&self->engine);
    end_writing(self, thread);
    return PyLong_FromUnsignedLong(dropped);
}

PyObject *ledger_reclaim(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct ledger_object *self = (struct ledger_object *)object;
    if (!may_write(self))
        return NULL;
    note_visits(self);
    PyThreadState *thread = begin_writing(self);
    uint32_t reclaimed = engine_reclaim(&self->engine);
    end_writing(self, thread);
    return PyLong_FromUnsignedLong(reclaimed);
}

PyObject *ledger_zero_control_pins(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct ledger_object *self = (struct ledger_object *)object;
    if (!is_engine(self))
        return NULL;
    /* Not a writer: it touches no private list, and its atomic AND of pin counts meets
     * whatever the engine's own thread does to the same words meanwhile. */
    PyThreadState *thread = begin_call(self);
    uint64_t zeroed = engine_zero_control_pins(&self->engine);
    end_call(self, thread);
    return PyLong_FromUnsignedLongLong(zeroed);
}

PyObject *ledger_set_epoch(PyObject *object, PyObject *argument)
{
    struct ledger_object *self = (struct ledger_object *)object;
    unsigned long long epoch = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred() || !may_write(self))
        return NULL;
    /* [EPOCH] Release: who sees the new epoch must not find what was dropped before it. */
    store_release(&self->ledger.shared->epoch, epoch);
    Py_RETURN_NONE;
}

PyObject *ledger_set_content(PyObject *object, PyObject *argument)
{
    struct ledger_object *self = (struct ledger_object *)object;
    if (!may_write(self))
        return NULL;
    Py_buffer view;
    if (PyObject_GetBuffer(argument, &view, PyBUF_SIMPLE) != 0)
        return NULL;
    uint64_t content[LEDGER_CONTENT_WORDS];
    bool known = view.len == sizeof content, unknown = view.len == 0;
    if (known)
        memcpy(content, view.buf, sizeof content);
    PyBuffer_Release(&view);
    if (!known && !unknown) {
        PyErr_Format(PyExc_ValueError, "Expected %zu bytes of content, or none.", sizeof content);
        return NULL;
    }
    ledger_write_content(&self->ledger, known ? content : NULL);
    Py_RETURN_NONE;
}
