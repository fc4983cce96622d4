#include <string.h>

#include "bind_ledger.h"
#include "bind_ring.h"
#include "bind_spawn.h"
#include "engine.h"
#include "ring.h"

static bool add_constant(PyObject *module, const char *name, unsigned long long value)
{
    PyObject *number = PyLong_FromUnsignedLongLong(value);
    if (number == NULL)
        return false;
    int failed = PyModule_AddObjectRef(module, name, number);
    Py_DECREF(number);
    return !failed;
}

static bool add_constants(PyObject *module)
{
    const struct {
        const char *name;
        unsigned long long value;
    } constants[] = {
        {"LANDING", BLOCK_LANDING},
        {"FILLING", BLOCK_FILLING},
        {"PUBLISHED", PUBLISH_DONE},
        {"STALE", PUBLISH_STALE},
        {"DUPLICATE", PUBLISH_DUPLICATE},
        {"CROWDED", PUBLISH_CROWDED},
        {"MISS", NO_BLOCK},
        {"MISS_SLOT", NO_SLOT},
        {"PINS_MAX", WORD_PINS_MAX},
        {"COUNTERS_PER_ROLE", LEDGER_COUNTERS},
    };
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (!add_constant(module, constants[i].name, constants[i].value))
            return false;
    return true;
}

/* Where fields lie in their segments, for tools and for tests that damage them. */
static bool add_layout(PyObject *module)
{
    const struct {
        const char *field;
        size_t offset;
    } layout[] = {
        {"header.magic", offsetof(struct segment_header, magic)},
        {"header.version", offsetof(struct segment_header, version)},
        {"header.kind", offsetof(struct segment_header, kind)},
        {"header.layout", offsetof(struct segment_header, layout)},
        {"header.size", offsetof(struct segment_header, size)},
        {"header.parameters", offsetof(struct segment_header, parameters)},
        {"ring.tail", offsetof(struct ring_shared, tail)},
        {"ring.head", offsetof(struct ring_shared, head)},
        {"ring.sleeping", offsetof(struct ring_shared, sleeping)},
        {"ring.records", offsetof(struct ring_shared, records)},
        {"ledger.epoch", offsetof(struct ledger_shared, epoch)},
        {"ledger.content_version", offsetof(struct ledger_shared, content_version)},
        {"ledger.content", offsetof(struct ledger_shared, content)},
        {"ledger.counters", offsetof(struct ledger_shared, counters)},
        {"ledger.entries", offsetof(struct ledger_shared, entries)},
        {"entry.key", offsetof(struct block_entry, key)},
    };
    PyObject *offsets = PyDict_New();
    bool added = offsets != NULL;
    for (size_t i = 0; added && i < sizeof layout / sizeof *layout; i++) {
        PyObject *offset = PyLong_FromSize_t(layout[i].offset);
        added = offset != NULL && PyDict_SetItemString(offsets, layout[i].field, offset) == 0;
        Py_XDECREF(offset);
    }
    added = added && PyModule_AddObjectRef(module, "LAYOUT", offsets) == 0;
    Py_XDECREF(offsets);
    return added;
}

static PyObject *block_ids(PyObject *module, PyObject *source)
{
    (void)module;
    Py_buffer slots;
    if (!hold_view(source, "slots", sizeof(uint64_t), &slots))
        return NULL;
    size_t count = (size_t)slots.len / sizeof(uint64_t);
    PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(uint32_t)));
    if (result != NULL) {
        char *out = PyBytes_AsString(result);
        for (size_t i = 0; i < count; i++) {
            uint32_t block = slot_block(slot_at(&slots, i));
            memcpy(out + i * sizeof block, &block, sizeof block);
        }
    }
    PyBuffer_Release(&slots);
    return result;
}

static PyMethodDef functions[] = {
    {"block_ids", block_ids, METH_O, "The block ids of packed slots, packed."},
    {"spawn", spawn_process, METH_VARARGS, "Start a process that ends with this thread."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mpkv.memory._native",
    .m_doc = "Rings and the ledger in shared memory; see mpkv.memory.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    if (fetch_errors() && add_constants(module) && add_layout(module) &&
        add_ring_types(module) && add_ledger_type(module))
        return module;
    Py_DECREF(module);
    return NULL;
}
