/* The ledger's methods for any process: look, pin, unpin. */
#ifndef MPKV_BIND_TABLE_H
#define MPKV_BIND_TABLE_H

#include "ledger_object.h"

PyObject *ledger_find(PyObject *object, PyObject *key);
PyObject *ledger_lookup_prefix(PyObject *object, PyObject *keys);
PyObject *ledger_contains_many(PyObject *object, PyObject *keys);
PyObject *ledger_pin_many(PyObject *object, PyObject *keys);
PyObject *ledger_pin_prefix(PyObject *object, PyObject *keys);
PyObject *ledger_pin_slots(PyObject *object, PyObject *slots);
PyObject *ledger_keys_of(PyObject *object, PyObject *slots);
PyObject *ledger_ready_besides(PyObject *object, PyObject *generations);
PyObject *ledger_unpin_many(PyObject *object, PyObject *slots);
PyObject *ledger_touch_many(PyObject *object, PyObject *keys);
PyObject *ledger_counts(PyObject *object, PyObject *unused);

#endif
