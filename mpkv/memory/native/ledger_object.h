/* The Python object of a ledger, and what each of its methods begins with. */
#ifndef MPKV_LEDGER_OBJECT_H
#define MPKV_LEDGER_OBJECT_H

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

#endif
