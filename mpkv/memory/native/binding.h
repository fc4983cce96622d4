/* What the binding files share: it lies below all of them and calls none. They, and this,
 * are the only files here that know of Python:
 *
 *     module.c -> bind_ring.c, bind_spawn.c                     -> binding.c
 *              -> bind_ledger.c -> bind_table.c, bind_engine.c  -> ledger_object.c -> binding.c
 */
#ifndef MPKV_BINDING_H
#define MPKV_BINDING_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "segment.h"

/* mpkv.errors, fetched once when the module is imported. */
extern PyObject *segment_refused;
extern PyObject *ring_claimed;

/* False: raised. */
bool fetch_errors(void);

PyObject *add_type(PyObject *module, PyType_Spec *spec);

/* A heap type's instance gives up its memory and its reference to the type. */
void release_instance(PyObject *self);

/* Turn a failed segment call into the exception for it; always NULL. */
PyObject *segment_error(enum segment_result result, const struct refusal *why);

/* Hold a view of `source`, whose length must be a multiple of `unit`. False: raised. */
bool hold_view(PyObject *source, const char *what, Py_ssize_t unit, Py_buffer *view);

/* Buffers need not be aligned for words. */
uint64_t slot_at(const Py_buffer *slots, size_t i);

#endif
