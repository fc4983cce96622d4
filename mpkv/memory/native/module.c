#include "binding.h"

#include <string.h>

#include "engine.h"
#include "ring.h"

PyObject *segment_refused;
PyObject *ring_claimed;

PyObject *segment_error(enum segment_result result, const struct refusal *why)
{
    if (result == SEGMENT_ERRNO)
        return PyErr_SetFromErrno(PyExc_OSError);
    PyErr_SetString(segment_refused, why->sentence);
    return NULL;
}

bool hold_view(PyObject *source, const char *what, Py_ssize_t unit, Py_buffer *view)
{
    if (PyObject_GetBuffer(source, view, PyBUF_SIMPLE) != 0)
        return false;
    if (view->len % unit == 0)
        return true;
    PyErr_Format(PyExc_ValueError,
                 "%s of %zd bytes are no whole number of items of %zd bytes; pass items packed "
                 "one after another.",
                 what, view->len, unit);
    PyBuffer_Release(view);
    return false;
}

uint64_t slot_at(const Py_buffer *slots, size_t i)
{
    uint64_t slot;
    memcpy(&slot, (const unsigned char *)slots->buf + i * sizeof slot, sizeof slot);
    return slot;
}

void release_instance(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc free_memory = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_memory(self);
    Py_DECREF(type);
}

PyObject *add_type(PyObject *module, PyType_Spec *spec)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type == NULL)
        return NULL;
    if (PyModule_AddType(module, (PyTypeObject *)type) != 0) {
        Py_DECREF(type);
        return NULL;
    }
    return type;
}

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
    {NULL, NULL, 0, NULL},
};

static PyObject *error_type(PyObject *errors, const char *name)
{
    return PyObject_GetAttrString(errors, name);
}

static bool fetch_errors(void)
{
    PyObject *errors = PyImport_ImportModule("mpkv.errors");
    if (errors == NULL)
        return false;
    segment_refused = error_type(errors, "SegmentRefused");
    ring_claimed = error_type(errors, "RingClaimed");
    Py_DECREF(errors);
    return segment_refused != NULL && ring_claimed != NULL;
}

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
