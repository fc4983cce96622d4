/* The ledger's methods for its one writer, the engine. */
#ifndef MPKV_BIND_ENGINE_H
#define MPKV_BIND_ENGINE_H

#include "ledger_object.h"

PyObject *ledger_allocate(PyObject *object, PyObject *arguments, PyObject *keywords);
PyObject *ledger_publish(PyObject *object, PyObject *arguments, PyObject *keywords);
PyObject *ledger_free(PyObject *object, PyObject *argument);
PyObject *ledger_drop_ready(PyObject *object, PyObject *unused);
PyObject *ledger_reclaim(PyObject *object, PyObject *unused);
PyObject *ledger_zero_control_pins(PyObject *object, PyObject *unused);
PyObject *ledger_set_epoch(PyObject *object, PyObject *argument);
PyObject *ledger_set_content(PyObject *object, PyObject *argument);

#endif
