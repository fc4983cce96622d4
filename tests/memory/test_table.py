"""What the block table and its index promise, seen by the engine and the control plane."""

import array
import mmap
import struct

import pytest

from mpkv.memory import (
    DUPLICATE,
    FILLING,
    LANDING,
    MISS,
    MISS_SLOT,
    PUBLISHED,
    STALE,
    Ledger,
    block_ids,
)
from mpkv.memory._native import LAYOUT, PINS_MAX
from tests.memory.blocks import (
    BLOCKS,
    KEY_SIZE,
    MISS_BYTES,
    allocate,
    counts,
    key,
    keys,
    store,
    unpack,
)


def test_a_new_ledger_is_all_free(engine: Ledger, control: Ledger) -> None:
    for ledger in (engine, control):
        assert (ledger.blocks, ledger.key_size) == (BLOCKS, KEY_SIZE)
        assert counts(ledger, free=BLOCKS)


def test_published_blocks_are_found_by_everyone(engine: Ledger, control: Ledger) -> None:
    slots = allocate(engine, 3, LANDING)
    assert counts(engine, free=5, landing=3)
    assert control.find(key(1)) == -1
    assert engine.publish(slots, keys(1, 2, 3), pin=False) == bytes([PUBLISHED] * 3)
    for ledger in (engine, control):
        assert [ledger.find(key(n)) for n in (1, 2, 3, 4)] == [0, 1, 2, -1]
        assert ledger.contains_many(keys(1, 9, 3)) == b"\1\0\1"
        assert ledger.lookup_prefix(keys(3, 2, 1, 4, 1)) == 3
        assert ledger.lookup_prefix(keys(4, 1)) == 0
        assert ledger.lookup_prefix(b"") == 0
        assert counts(ledger, free=5, ready=3)


def test_allocation_is_all_or_nothing(engine: Ledger, control: Ledger) -> None:
    store(engine, 1, 2, 3)
    assert control.pin_many(keys(1)) != MISS_BYTES
    assert engine.allocate(BLOCKS, FILLING) is None
    assert engine.allocate(BLOCKS + 1, FILLING) is None
    assert engine.lookup_prefix(keys(1, 2, 3)) == 3
    assert engine.allocate(0, FILLING) == (b"", b"")
    allocated = engine.allocate(BLOCKS - 1, FILLING)
    assert allocated is not None
    # From the end of what was stored together.
    assert allocated[1] == keys(3, 2)
    assert engine.contains_many(keys(1, 2, 3)) == b"\1\0\0"


def test_every_allocation_has_a_new_generation(engine: Ledger) -> None:
    seen = set()
    for _ in range(4):
        slots = allocate(engine, BLOCKS)
        seen |= set(unpack(slots))
        assert engine.free(slots) == BLOCKS
    assert len(seen) == 4 * BLOCKS
    assert {block for _, block in seen} == set(range(BLOCKS))


def test_a_slot_of_an_older_generation_does_nothing(engine: Ledger) -> None:
    old = allocate(engine, BLOCKS)
    engine.free(old)
    assert engine.publish(old[:8], key(1), pin=True) == bytes([STALE])
    assert engine.free(old) == 0
    new = allocate(engine, BLOCKS)
    assert engine.publish(old[:8], key(1), pin=True) == bytes([STALE])
    assert engine.free(old) == 0
    assert engine.unpin_many(old) == 0
    assert counts(engine, filling=BLOCKS)
    assert engine.publish(new[:8] * 2, keys(1, 2), pin=False) == bytes([PUBLISHED, STALE])
    assert engine.contains_many(keys(1, 2)) == b"\1\0"


def test_an_older_slot_gives_back_no_pin_of_a_newer_one(engine: Ledger, control: Ledger) -> None:
    store(engine, *range(BLOCKS))
    old = control.pin_many(key(1))
    assert control.unpin_many(old) == 1
    engine.drop_ready()
    store(engine, *range(BLOCKS))
    new = control.pin_many(keys(*range(BLOCKS)))
    assert control.unpin_many(old) == 0
    assert control.unpin_many(new) == BLOCKS


def test_a_key_is_published_once(engine: Ledger) -> None:
    store(engine, 1)
    slots = allocate(engine, 3)
    assert engine.publish(slots, keys(1, 2, 2), pin=True) == bytes(
        [DUPLICATE, PUBLISHED, DUPLICATE]
    )
    assert engine.find(key(1)) == 0
    assert counts(engine, free=6, ready=2, engine_pins=1)
    assert engine.unpin_many(slots) == 1
    assert engine.free(slots) == 1


def test_pins_are_counted_by_owner(engine: Ledger, control: Ledger) -> None:
    slots = allocate(engine, 2)
    engine.publish(slots, keys(1, 2), pin=True)
    assert counts(engine, free=6, ready=2, engine_pins=2)
    held = control.pin_many(keys(2, 3, 1, 2))
    assert held == slots[8:] + MISS_BYTES + slots[:8] + slots[8:]
    assert counts(engine, free=6, ready=2, engine_pins=2, control_pins=3)
    assert control.unpin_many(held) == 3
    assert control.unpin_many(held) == 0
    assert engine.unpin_many(slots) == 2
    assert engine.unpin_many(slots) == 0
    assert counts(engine, free=6, ready=2)


def test_pin_prefix_stops_at_the_first_miss(engine: Ledger, control: Ledger) -> None:
    slots = store(engine, 1, 2, 3)
    assert control.pin_prefix(keys(1, 2, 9, 3)) == slots[:16]
    assert control.pin_prefix(keys(9, 1)) == b""
    assert control.pin_prefix(keys(1, 2, 3)) == slots
    assert counts(engine, free=5, ready=3, control_pins=5)


def test_a_pinned_block_is_not_evicted(engine: Ledger, control: Ledger) -> None:
    store(engine, *range(BLOCKS))
    held = control.pin_many(keys(*range(BLOCKS - 1)))
    allocated = engine.allocate(1, FILLING)
    assert allocated is not None
    assert allocated[1] == key(BLOCKS - 1)
    assert engine.allocate(1, FILLING) is None
    assert control.unpin_many(held[:8]) == 1
    allocated = engine.allocate(1, FILLING)
    assert allocated is not None
    assert allocated[1] == key(0)


def test_a_freed_block_drains_until_its_pins_are_gone(engine: Ledger, control: Ledger) -> None:
    slots = store(engine, 1, 2)
    held = control.pin_many(keys(1, 1))
    assert engine.free(slots) == 2
    assert engine.free(slots) == 0
    assert counts(engine, free=7, draining=1, control_pins=2)
    assert control.find(key(1)) == -1
    assert control.pin_many(key(1)) == MISS_BYTES
    assert control.unpin_many(held[:8]) == 1
    assert engine.reclaim() == 0
    assert control.unpin_many(held[8:]) == 1
    assert counts(engine, free=7, draining=1)
    assert engine.reclaim() == 1
    assert counts(engine, free=BLOCKS)


def test_allocation_takes_drained_blocks_when_short(engine: Ledger, control: Ledger) -> None:
    slots = store(engine, *range(BLOCKS))
    held = control.pin_many(keys(0))
    engine.free(slots)
    assert engine.allocate(BLOCKS, FILLING) is None
    control.unpin_many(held)
    assert engine.allocate(BLOCKS, FILLING) is not None


def test_a_draining_key_can_be_published_anew(engine: Ledger, control: Ledger) -> None:
    old = store(engine, 1)
    control.pin_many(key(1))
    engine.free(old)
    new = store(engine, 1)
    assert control.pin_many(key(1)) == new
    assert control.unpin_many(old + new) == 2


def test_drop_ready_forgets_everything(engine: Ledger, control: Ledger) -> None:
    store(engine, 1, 2, 3)
    filling = allocate(engine, 1)
    held = control.pin_many(key(2))
    assert engine.drop_ready() == 3
    assert counts(engine, free=6, filling=1, draining=1, control_pins=1)
    assert control.contains_many(keys(1, 2, 3)) == bytes(3)
    assert engine.drop_ready() == 0
    assert engine.publish(filling, key(4), pin=False) == bytes([PUBLISHED])
    store(engine, 2)
    assert control.contains_many(keys(2, 4)) == b"\1\1"
    assert control.unpin_many(held) == 1


def test_the_pins_of_a_dead_control_plane_are_taken_back(engine: Ledger, control: Ledger) -> None:
    slots = allocate(engine, 2)
    engine.publish(slots, keys(1, 2), pin=True)
    held = control.pin_many(keys(1, 1, 2))
    engine.free(slots[:8])
    assert engine.zero_control_pins() == 3
    assert counts(engine, free=6, ready=1, draining=1, engine_pins=2)
    assert control.unpin_many(held) == 0
    engine.unpin_many(slots)
    assert engine.reclaim() == 1


@pytest.mark.parametrize("owner", ["engine", "control"])
def test_a_pin_beyond_the_count_is_a_miss(engine: Ledger, control: Ledger, owner: str) -> None:
    store(engine, 1)
    pinner, other = (engine, control) if owner == "engine" else (control, engine)
    held = pinner.pin_many(key(1) * 70_000)
    slots = [slot for (slot,) in struct.iter_unpack("Q", held)]
    assert len(slots) == 70_000
    assert sum(slot != MISS_SLOT for slot in slots) == PINS_MAX == 4095
    assert counts(engine, free=7, ready=1, **{f"{owner}_pins": PINS_MAX})
    other_slot = other.pin_many(key(1))
    assert other_slot != MISS_BYTES
    assert other.unpin_many(other_slot) == 1
    assert pinner.unpin_many(held) == PINS_MAX
    assert counts(engine, free=7, ready=1)


@pytest.mark.parametrize("key_size", [5, 7, 8, 16, 36, 63, 64])
def test_keys_of_every_size_are_told_apart(key_size: int) -> None:
    engine = Ledger.create(500, key_size)
    known = [n.to_bytes(4) + bytes(key_size - 5) + bytes([n % 3]) for n in range(500)]
    if key_size > 5:
        known[1::2] = [bytes(key_size - 4) + n.to_bytes(4) for n in range(1, 500, 2)]
    slots = allocate(engine, 500)
    assert engine.publish(slots, b"".join(known), pin=False) == bytes(500)
    assert [engine.find(k) for k in known] == list(range(500))
    assert engine.contains_many(b"\xff" * key_size) == b"\0"
    allocated = engine.allocate(500, FILLING)
    assert allocated is not None
    assert allocated[1] == b"".join(reversed(known))
    engine.close()


def test_the_content_is_seen_by_everyone_while_it_is_known(engine: Ledger, control: Ledger) -> None:
    assert engine.content == control.content == b""
    for content in (b"a" * 16, b"b" * 16, b"", b"c" * 16):
        engine.set_content(content)
        assert engine.content == control.content == content
    engine.set_content(b"")
    engine.set_content(b"")
    assert control.content == b""
    with pytest.raises(ValueError, match="Expected 16 bytes of content"):
        engine.set_content(b"short")


@pytest.mark.parametrize("written", [0, 8, 16])
def test_a_content_whose_writer_dies_in_the_middle_is_not_known(
    engine: Ledger, control: Ledger, written: int
) -> None:
    """As it stores them: that it is not known, the words one by one, that it is."""
    engine.set_content(b"a" * 16)
    with mmap.mmap(engine.fd, 0) as segment:
        version = LAYOUT["ledger.content_version"]
        segment[version] += 1
        start = LAYOUT["ledger.content"]
        segment[start : start + written] = b"b" * written
        assert control.content == b""
        segment[start : start + 16] = b"b" * 16
        segment[version] += 1
    assert control.content == b"b" * 16


def test_the_epoch_is_seen_by_everyone(engine: Ledger, control: Ledger) -> None:
    assert engine.epoch == control.epoch == 0
    engine.set_epoch(1 << 40)
    assert engine.epoch == control.epoch == 1 << 40


def test_block_ids_of_slots(engine: Ledger) -> None:
    engine.free(allocate(engine, 3))
    slots = allocate(engine, 3)
    assert struct.unpack("4I", block_ids(slots + MISS_BYTES)) == (
        *(block for _, block in unpack(slots)),
        MISS,
    )


def test_ready_blocks_of_generations_not_seen_yet_are_listed(
    engine: Ledger, control: Ledger
) -> None:
    seen = array.array("I", bytes(4 * BLOCKS))
    assert control.published == 0
    assert control.ready_besides(seen) == b""
    slots = store(engine, 1, 2, 3)
    allocate(engine, 1, LANDING)
    assert control.published == 3
    assert control.ready_besides(seen) == slots
    for generation, block in unpack(slots[:16]):
        seen[block] = generation
    assert control.ready_besides(seen) == slots[16:]
    # The same block in a later generation counts as new.
    engine.free(slots[:8])
    again = store(engine, 9)
    assert unpack(again)[0][1] == unpack(slots)[0][1]
    assert set(unpack(control.ready_besides(seen))) == {unpack(again)[0], unpack(slots)[2]}
    assert control.published == 4


def test_a_slot_is_pinned_in_its_own_generation_only(engine: Ledger, control: Ledger) -> None:
    slots = store(engine, 1, 2, 3)
    landing = allocate(engine, 1, LANDING)
    assert control.pin_slots(slots[:16] + landing) == b"\1\1\0"
    assert counts(engine, free=4, ready=3, landing=1, control_pins=2)
    assert control.keys_of(slots[:16]) == keys(1, 2)
    assert control.unpin_many(slots) == 2
    engine.free(slots)
    assert control.pin_slots(slots) == b"\0\0\0"
    again = store(engine, 4)
    assert unpack(again)[0][1] in {block for _, block in unpack(slots)}
    assert control.pin_slots(slots) == b"\0\0\0"
    assert control.pin_slots(again) == b"\1"
    assert counts(engine, free=6, ready=1, landing=1, control_pins=1)


def test_a_pinned_slot_is_not_evicted_and_not_marked_as_visited(
    engine: Ledger, control: Ledger
) -> None:
    slots = store(engine, *range(BLOCKS))
    # The last two would be the first to go.
    assert control.pin_slots(slots[-16:]) == b"\1\1"
    assert control.unpin_many(slots[-16:-8]) == 1
    allocated = engine.allocate(1, FILLING)
    assert allocated is not None
    assert allocated[1] == key(BLOCKS - 2)
