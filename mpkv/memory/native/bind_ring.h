/* The Python objects of a ring and its two sides. */
#ifndef MPKV_BIND_RING_H
#define MPKV_BIND_RING_H

#include "binding.h"

bool add_ring_types(PyObject *module);

#endif
