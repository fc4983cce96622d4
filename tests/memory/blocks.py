"""A small ledger and what tests say about it."""

import struct

from mpkv.memory import FILLING, MISS_SLOT, Ledger

BLOCKS = 8
KEY_SIZE = 36
MISS_BYTES = struct.pack("Q", MISS_SLOT)


def key(number: int) -> bytes:
    return bytes(KEY_SIZE - 4) + struct.pack(">I", number)


def keys(*numbers: int) -> bytes:
    return b"".join(map(key, numbers))


def allocate(engine: Ledger, count: int, state: int = FILLING) -> bytes:
    allocated = engine.allocate(count, state)
    assert allocated is not None
    return allocated[0]


def store(engine: Ledger, *numbers: int) -> bytes:
    """Publish fresh blocks under these keys; their slots."""
    slots = allocate(engine, len(numbers))
    assert engine.publish(slots, keys(*numbers), pin=False) == bytes(len(numbers))
    return slots


def unpack(slots: bytes) -> list[tuple[int, int]]:
    """(generation, block) of each slot."""
    return [(slot >> 32, slot & 0xFFFFFFFF) for (slot,) in struct.iter_unpack("Q", slots)]


def counts(ledger: Ledger, **expected: int) -> bool:
    found = ledger.counts()
    return found == dict.fromkeys(found, 0) | expected
