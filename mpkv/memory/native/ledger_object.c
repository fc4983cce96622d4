#include "ledger_object.h"

bool ledger_is_open(const struct ledger_object *self)
{
    if (self->ledger.shared != NULL)
        return true;
    PyErr_SetString(PyExc_ValueError, "The ledger is closed.");
    return false;
}

PyThreadState *begin_call(struct ledger_object *self)
{
    self->calls++;
    return PyEval_SaveThread();
}

void end_call(struct ledger_object *self, PyThreadState *thread)
{
    PyEval_RestoreThread(thread);
    self->calls--;
}

void keep_visit(struct ledger_object *self, uint32_t block)
{
    if (self->visits != NULL && block != NO_BLOCK && self->visit_count < self->ledger.blocks)
        self->visits[self->visit_count++] = block;
}
