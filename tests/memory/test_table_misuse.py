"""Calls and memory that should not be: refused or harmless, never wrong."""

import os
import random
import struct
import threading

import pytest

from mpkv.memory import FILLING, MISS_SLOT, STALE, Ledger, block_ids
from mpkv.memory._native import LAYOUT
from tests.memory.blocks import BLOCKS, KEY_SIZE, MISS_BYTES, allocate, counts, key, keys, store


def test_the_blocks_own_entry_decides_which_key_it_holds(engine: Ledger, control: Ledger) -> None:
    """The index still leads to the block, as a stale hint does."""
    store(engine, 1)
    key_at = LAYOUT["ledger.entries"] + LAYOUT["entry.key"]
    for offset in (0, 8, KEY_SIZE - 1):
        os.pwrite(engine.fd, b"\xff", key_at + offset)
        assert control.find(key(1)) == -1
        assert control.contains_many(key(1)) == b"\0"
        assert control.pin_many(key(1)) == MISS_BYTES
        assert counts(engine, free=7, ready=1)
        os.pwrite(engine.fd, key(1)[offset : offset + 1], key_at + offset)
    assert control.pin_many(key(1)) != MISS_BYTES


@pytest.mark.parametrize("slot", [MISS_SLOT, BLOCKS, (1 << 32) | BLOCKS, 0, 1 << 63])
def test_a_slot_that_never_was_does_nothing(engine: Ledger, control: Ledger, slot: int) -> None:
    packed = struct.pack("Q", slot)
    assert engine.publish(packed, key(1), pin=False) == bytes([STALE])
    assert engine.free(packed) == 0
    assert engine.unpin_many(packed) == control.unpin_many(packed) == 0
    assert control.pin_slots(packed) == b"\0"
    assert counts(engine, free=BLOCKS)


@pytest.mark.parametrize(
    ("blocks", "key_size"), [(0, 36), (-1, 36), (1 << 29, 36), (8, 4), (8, 65)]
)
def test_a_bad_shape_is_refused(blocks: int, key_size: int) -> None:
    with pytest.raises((ValueError, OverflowError)):
        Ledger.create(blocks, key_size)


def test_a_blob_of_odd_length_is_refused(engine: Ledger) -> None:
    slots = allocate(engine, 1)
    for call in (
        engine.lookup_prefix,
        engine.contains_many,
        engine.pin_many,
        engine.pin_prefix,
        engine.touch_many,
    ):
        with pytest.raises(ValueError, match="keys of 37 bytes are no whole number of items of 36"):
            call(key(1) + b"x")
    for call in (engine.unpin_many, engine.free, engine.pin_slots, engine.keys_of, block_ids):
        with pytest.raises(ValueError, match="slots of 9 bytes"):
            call(slots + b"x")
    with pytest.raises(ValueError, match="Expected 8 generations, found 36 bytes"):
        engine.ready_besides(bytes(36))
    with pytest.raises(ValueError, match="no block of this ledger"):
        engine.keys_of(struct.pack("Q", BLOCKS))
    with pytest.raises(ValueError, match="Expected a key of 36 bytes, found 35"):
        engine.find(key(1)[1:])
    with pytest.raises(ValueError, match="as many keys as slots, found 1 slots and 2"):
        engine.publish(slots, keys(1, 2), pin=False)
    with pytest.raises(ValueError, match="LANDING"):
        engine.allocate(1, 0)
    with pytest.raises(ValueError, match="count"):
        engine.allocate(-1, FILLING)
    assert counts(engine, free=7, filling=1)


def test_only_the_creator_may_write(control: Ledger) -> None:
    for call in (
        lambda: control.allocate(1, FILLING),
        lambda: control.publish(b"", b"", pin=False),
        lambda: control.free(b""),
        lambda: control.set_epoch(1),
        lambda: control.set_content(b""),
        control.drop_ready,
        control.reclaim,
        control.zero_control_pins,
    ):
        with pytest.raises(PermissionError, match="Only the process that created the ledger"):
            call()


def test_a_closed_ledger_refuses_every_call(engine: Ledger) -> None:
    counters = engine.counters("engine")
    engine.close()
    engine.close()
    for call in (
        engine.counts,
        engine.drop_ready,
        counters.read,
        lambda: engine.find(key(1)),
        lambda: engine.pin_many(key(1)),
        lambda: engine.epoch,
        lambda: engine.content,
    ):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_threads_cannot_break_a_ledger() -> None:
    """Batches run without the GIL: a second writer and close() are turned away meanwhile."""
    blocks = 20_000
    engine = Ledger.create(blocks, KEY_SIZE)
    packed = keys(*range(blocks))
    refusals: list[str] = []

    def write() -> None:
        try:
            for _ in range(30):
                allocated = engine.allocate(blocks, FILLING)
                if allocated is not None:
                    engine.publish(allocated[0], packed, pin=False)
        except (RuntimeError, ValueError) as refusal:
            refusals.append(str(refusal))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert engine.zero_control_pins() == 0  # no writer in this sense: always allowed
    for thread in threads:
        thread.join(60)
    assert set(refusals) <= {"The ledger has one writer, and another thread is writing."}
    found = engine.counts()
    assert found["free"] + found["filling"] + found["ready"] == blocks
    engine.close()


@pytest.mark.parametrize("seed", range(20))
def test_scribbling_over_a_ledger_crashes_nobody(
    engine: Ledger, control: Ledger, seed: int
) -> None:
    """Whatever stands in entries and buckets, calls end and stay within the segment.

    The engine's own lists are out of reach, so after a reset and with all pins gone it
    has every block back.
    """
    rng = random.Random(seed)
    size = os.fstat(engine.fd).st_size
    every_key = keys(*range(20))
    for _ in range(50):
        os.pwrite(engine.fd, rng.randbytes(24), rng.randrange(LAYOUT["ledger.entries"], size - 24))
        allocated = engine.allocate(rng.randrange(3), FILLING)
        slots = allocated[0] if allocated is not None else b""
        chosen = [rng.randrange(20) for _ in range(len(slots) // 8)]
        engine.publish(slots, keys(*chosen), pin=False)
        for ledger in (engine, control):
            ledger.unpin_many(ledger.pin_many(every_key))
            ledger.touch_many(every_key)
            ledger.contains_many(every_key)
        engine.free(slots[:8])
        engine.counts()
    engine.drop_ready()
    os.pwrite(engine.fd, bytes(size - LAYOUT["ledger.entries"]), LAYOUT["ledger.entries"])
    engine.drop_ready()
    engine.reclaim()
    assert engine.allocate(BLOCKS, FILLING) is not None
