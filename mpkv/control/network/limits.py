"""What this process may use of the machine, so that no flood of peers ends it or the machine.

ZeroMQ bounds how many messages it queues for each connection, and neither how many connections
there are nor how many frames a message has.
"""

import ctypes
import os
import resource

# What libzmq cannot allocate costs one connection if it is a long frame and the process
# otherwise, so connections are dropped long before.
PRIVATE_MEMORY = 2 << 30
STACK = 8 << 20
DESCRIPTORS = 8192
MAX_CONNECTIONS = 1024
MAX_SESSIONS = 1024
# For rings, eventfds, pidfds, name lookups, and connections accepted before the gate shuts.
RESERVED_DESCRIPTORS = 96

_M_MMAP_THRESHOLD = -3
# Of glibc's type, or more.
_PTHREAD_ATTR_BYTES = 256


def apply_limits() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (PRIVATE_MEMORY, PRIVATE_MEMORY))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < DESCRIPTORS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, hard), hard))
    # Long messages go back to the system as soon as they are freed; by default glibc
    # keeps what is freed once.
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 1 << 20)
    # libzmq makes its threads with the default, which is what `ulimit -s` was at the start:
    # all of a stack counts towards the first limit, used or not.
    attributes = ctypes.create_string_buffer(_PTHREAD_ATTR_BYTES)
    libc.pthread_attr_init(attributes)
    libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(STACK))
    libc.pthread_setattr_default_np(attributes)


def max_connections() -> int:
    """How many connections peers may have to us. The limit may change while we run."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(MAX_CONNECTIONS, soft // 2 - RESERVED_DESCRIPTORS // 2))


def max_sessions() -> int:
    """How many peers we may connect to."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(MAX_SESSIONS, soft // 4))


def spare_descriptor() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
