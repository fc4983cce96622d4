/* The Python object of a ledger. What any process may do with blocks is in bind_table.c,
 * what only the engine may do in bind_engine.c, the rest in bind_ledger.c. */
#ifndef MPKV_BIND_LEDGER_H
#define MPKV_BIND_LEDGER_H

#include "binding.h"
#include "engine.h"

struct ledger_object {
    PyObject_HEAD
    struct ledger ledger;
    struct engine engine;
    int fd;
    bool is_engine;
    bool writing;        /* guarded by the GIL, as is `calls` */
    unsigned long calls; /* under way without the GIL: the mapping must stay */
};

/* False: closed, and raised. */
bool ledger_is_open(const struct ledger_object *self);

/* Around the part of a call that runs without the GIL. */
PyThreadState *begin_call(struct ledger_object *self);
void end_call(struct ledger_object *self, PyThreadState *thread);

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

PyObject *ledger_allocate(PyObject *object, PyObject *arguments, PyObject *keywords);
PyObject *ledger_publish(PyObject *object, PyObject *arguments, PyObject *keywords);
PyObject *ledger_free(PyObject *object, PyObject *argument);
PyObject *ledger_drop_ready(PyObject *object, PyObject *unused);
PyObject *ledger_reclaim(PyObject *object, PyObject *unused);
PyObject *ledger_zero_control_pins(PyObject *object, PyObject *unused);
PyObject *ledger_set_epoch(PyObject *object, PyObject *argument);

#endif
