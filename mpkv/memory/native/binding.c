#include "binding.h"

#include <string.h>

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

static PyObject *error_type(PyObject *errors, const char *name)
{
    return PyObject_GetAttrString(errors, name);
}

bool fetch_errors(void)
{
    PyObject *errors = PyImport_ImportModule("mpkv.errors");
    if (errors == NULL)
        return false;
    segment_refused = error_type(errors, "SegmentRefused");
    ring_claimed = error_type(errors, "RingClaimed");
    Py_DECREF(errors);
    return segment_refused != NULL && ring_claimed != NULL;
}
