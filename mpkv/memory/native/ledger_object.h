/* The Python object of a ledger, and what each of its methods begins with. */
#ifndef MPKV_LEDGER_OBJECT_H
#define MPKV_LEDGER_OBJECT_H

#include "binding.h"
#include "engine.h"

struct ledger_object {
    PyObject_HEAD
    struct ledger ledger;
    struct engine engine;
    /* What the engine itself visited, noted when it writes next; NULL for anybody else. */
    uint32_t *visits;
    size_t visit_count; /* guarded by the GIL, as are `visits` and what follows */
    int fd;
    bool is_engine;
    bool writing;
    unsigned long calls; /* under way without the GIL: the mapping must stay */
};

/* False: closed, and raised. */
bool ledger_is_open(const struct ledger_object *self);

/* Remember visits until the next call that writes; too many are forgotten. */
void keep_visit(struct ledger_object *self, uint32_t block);

/* Around the part of a call that runs without the GIL. */
PyThreadState *begin_call(struct ledger_object *self);
void end_call(struct ledger_object *self, PyThreadState *thread);

#endif
