"""Rings: byte records from one process to another, without locks and without waiting."""

import os
from typing import Self

from mpkv.memory import _native
from mpkv.memory._native import Consumer, Producer
from mpkv.memory.segment import create_segment

__all__ = ["Consumer", "Producer", "Ring"]


class Ring(_native.RingCore):
    """One ring; each of its two sides can be claimed once, by `producer` or `consumer`."""

    __slots__ = ()

    @classmethod
    def create(cls, capacity: int, name: str) -> Self:
        """Make a ring of `capacity` bytes, a power of two of at least 4096.

        The last 8 bytes of room are never a record's: `max_record` is `capacity - 8`.
        """
        fd = create_segment(f"mpkv-ring-{name}", cls.size_of(capacity))
        try:
            return cls.format_fd(fd, capacity)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int) -> Self:
        """Map a ring that another process made; SegmentRefused if it is anything else.

        `fd` stays the caller's: the ring keeps a duplicate.
        """
        own_fd = os.dup(fd)
        try:
            return cls.open_fd(own_fd)
        except BaseException:
            os.close(own_fd)
            raise
