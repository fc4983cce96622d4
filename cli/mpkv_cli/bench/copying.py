"""A plain copy between two shared regions: what moving bytes costs at the least."""

import ctypes
import mmap
import os
import threading
import time
from types import TracebackType
from typing import Self

from mpkv.memory import create_segment, map_segment


class Copies:
    """Two regions of `length` bytes. Use as a context manager."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._mappings = [_map(length) for _ in range(2)]
        self._views = [ctypes.c_char.from_buffer(mapping) for mapping in self._mappings]
        self._from, self._to = (ctypes.addressof(view) for view in self._views)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._views.clear()
        for mapping in self._mappings:
            mapping.close()

    def seconds(self, length: int, threads: int) -> float:
        """How long copying `length` bytes takes `threads` threads, an equal part for each."""
        part = length // threads
        workers = [
            # ctypes releases the GIL.
            threading.Thread(
                target=ctypes.memmove, args=(self._to + at * part, self._from + at * part, part)
            )
            for at in range(threads)
        ]
        started = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return time.perf_counter() - started


def _map(length: int) -> mmap.mmap:
    fd = create_segment("mpkv-bench-copy", length)
    try:
        mapping = map_segment(fd)
    finally:
        os.close(fd)
    for at in range(0, length, mmap.PAGESIZE):
        mapping[at] = 1
    return mapping
