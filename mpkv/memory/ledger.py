"""The ledger: block table, key index and counters of one engine, in one segment."""

import os
from typing import Self

from mpkv.memory import _native
from mpkv.memory.counters import NAMES_DIGEST, Counters
from mpkv.memory.segment import create_segment


class Ledger(_native.LedgerCore):
    """What the processes of one engine know together about the blocks of its tier.

    The process that creates it is the engine: it alone may allocate, publish and free,
    and its pins are the engine's. A process that attaches may look and pin; its pins
    are the control plane's.
    """

    __slots__ = ()

    @classmethod
    def create(cls, blocks: int, key_size: int) -> Self:
        """Make the ledger of a tier of `blocks` blocks, all free."""
        fd = create_segment("mpkv-ledger", cls.size_of(blocks, key_size))
        # A secret, so that nobody outside can choose keys that collide in the index.
        seed = int.from_bytes(os.urandom(8))
        try:
            return cls.format_fd(fd, blocks, key_size, seed, NAMES_DIGEST)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int) -> Self:
        """Map an engine's ledger; SegmentRefused if `fd` is anything else.

        `fd` stays the caller's: the ledger keeps a duplicate.
        """
        own_fd = os.dup(fd)
        try:
            return cls.open_fd(own_fd, NAMES_DIGEST)
        except BaseException:
            os.close(own_fd)
            raise

    def counters(self, role: str) -> Counters:
        """The counter page of a process role; only that process may add to it."""
        return Counters(self, role)
