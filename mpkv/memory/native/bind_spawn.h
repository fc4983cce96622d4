/* Starting helper processes, for Python. */
#ifndef MPKV_BIND_SPAWN_H
#define MPKV_BIND_SPAWN_H

#include "binding.h"

PyObject *spawn_process(PyObject *module, PyObject *arguments);

#endif
