"""Fills a mapping's page tables ahead of use.

Pages that the engine has filled long ago still fault, one by one, when another process first
reaches them through its own mapping, and on one host both ends of a READ do: the first
READ of a block runs at a tenth of the speed of the next.
"""

import ctypes
import logging
import mmap
import os
import threading
import time

log = logging.getLogger("mpkv.registration")

# Linux 5.14; the mmap module has no name for it before Python 3.13.
_MADV_POPULATE_READ = 22
# While a step runs, whoever maps memory or meets a peer in this process waits for it, so
# steps are short, far between, and not of a priority that another process can starve.
_STEP_BYTES = 1 << 20
_PAUSE_S = 0.0005


def prefault(mapping: mmap.mmap) -> None:
    """Start doing so in the background; about a second for each GiB, mostly of pauses."""
    threading.Thread(target=_populate, args=(mapping,), name="prefault", daemon=True).start()


def _populate(mapping: mmap.mmap) -> None:
    # mmap.madvise would hold the GIL all the while.
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    base = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    for start in range(0, len(mapping), _STEP_BYTES):
        length = min(_STEP_BYTES, len(mapping) - start)
        if madvise(base + start, length, _MADV_POPULATE_READ) != 0:
            log.debug("cannot prefault the tier: %s", os.strerror(ctypes.get_errno()))
            return
        time.sleep(_PAUSE_S)
