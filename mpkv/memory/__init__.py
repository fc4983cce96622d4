"""What lives in shared memory: segments, rings, the block table with its index, counters.

Runs in every process of an engine. Imports nothing of the other folders, only
`mpkv.errors`; the work is done in C, in `native/`. See README.md here.
"""

from typing import Final

from mpkv.memory import _native
from mpkv.memory._native import block_ids
from mpkv.memory.counters import Counters
from mpkv.memory.ledger import Ledger
from mpkv.memory.ring import Consumer, Producer, Ring
from mpkv.memory.segment import create_segment, map_segment

LANDING: Final = _native.LANDING
FILLING: Final = _native.FILLING
PUBLISHED: Final = _native.PUBLISHED
STALE: Final = _native.STALE
DUPLICATE: Final = _native.DUPLICATE
CROWDED: Final = _native.CROWDED
MISS: Final = _native.MISS
MISS_SLOT: Final = _native.MISS_SLOT

__all__ = [
    "CROWDED",
    "DUPLICATE",
    "FILLING",
    "LANDING",
    "MISS",
    "MISS_SLOT",
    "PUBLISHED",
    "STALE",
    "Consumer",
    "Counters",
    "Ledger",
    "Producer",
    "Ring",
    "block_ids",
    "create_segment",
    "map_segment",
]
