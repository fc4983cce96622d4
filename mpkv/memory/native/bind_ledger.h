/* The Python type of a ledger. */
#ifndef MPKV_BIND_LEDGER_H
#define MPKV_BIND_LEDGER_H

#include "binding.h"

bool add_ledger_type(PyObject *module);

#endif
