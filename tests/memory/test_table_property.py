"""The table and its index against a plain model, under random sequences of calls."""

import struct
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mpkv.memory import DUPLICATE, FILLING, LANDING, MISS_SLOT, PUBLISHED, STALE, Ledger

KEY_SIZE = 12
NUMBERS = st.integers(0, 11)
NUMBER_LISTS = st.lists(NUMBERS, max_size=8)


def key(number: int) -> bytes:
    return bytes(KEY_SIZE - 4) + struct.pack(">I", number)


def keys(numbers: list[int]) -> bytes:
    return b"".join(map(key, numbers))


def unpack(slots: bytes) -> list[int]:
    return [slot for (slot,) in struct.iter_unpack("Q", slots)]


def pack(slots: list[int]) -> bytes:
    return struct.pack(f"{len(slots)}Q", *slots)


@dataclass
class Block:
    """One slot in use, as the model sees it."""

    state: str
    number: int = -1
    engine_pins: int = 0
    control_pins: int = 0

    @property
    def pinned(self) -> bool:
        return self.engine_pins + self.control_pins > 0


@dataclass
class Model:
    blocks: int
    in_use: dict[int, Block] = field(default_factory=dict)

    def ready(self, number: int) -> int | None:
        for slot, block in self.in_use.items():
            if block.state == "ready" and block.number == number:
                return slot
        return None

    def retire(self, slot: int) -> None:
        if self.in_use[slot].pinned:
            self.in_use[slot].state = "draining"
        else:
            del self.in_use[slot]

    def reclaim(self) -> int:
        drained = [s for s, b in self.in_use.items() if b.state == "draining" and not b.pinned]
        for slot in drained:
            del self.in_use[slot]
        return len(drained)


class TableMachine(RuleBasedStateMachine):
    @initialize(blocks=st.integers(1, 9))
    def create(self, blocks: int) -> None:
        self.engine = Ledger.create(blocks, KEY_SIZE)
        self.control = Ledger.attach(self.engine.fd)
        self.model = Model(blocks)
        self.seen: list[int] = [0, MISS_SLOT]  # slots of every generation, and two that never are

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.control.close()
            self.engine.close()

    @rule(count=st.integers(0, 10), landing=st.booleans())
    def allocate(self, count: int, landing: bool) -> None:
        model = self.model
        allocated = self.engine.allocate(count, LANDING if landing else FILLING)
        if count > model.blocks - len(model.in_use):
            model.reclaim()
        idle = {b.number: s for s, b in model.in_use.items() if b.state == "ready" and not b.pinned}
        free = model.blocks - len(model.in_use)
        if count > free + len(idle):
            assert allocated is None
            return
        assert allocated is not None
        slots, evicted = unpack(allocated[0]), allocated[1]
        assert len(slots) == count
        assert len(evicted) == KEY_SIZE * max(0, count - free)
        for i in range(0, len(evicted), KEY_SIZE):
            (number,) = struct.unpack_from(">I", evicted, i + KEY_SIZE - 4)
            del model.in_use[idle.pop(number)]
        assert not set(slots) & set(self.seen)
        taken = {slot & 0xFFFFFFFF for slot in model.in_use}
        for slot in slots:
            assert slot & 0xFFFFFFFF not in taken
            model.in_use[slot] = Block("landing" if landing else "filling")
        self.seen += slots

    @rule(data=st.data(), numbers=NUMBER_LISTS, pin=st.booleans())
    def publish(self, data: st.DataObject, numbers: list[int], pin: bool) -> None:
        slots = [data.draw(st.sampled_from(self.seen)) for _ in numbers]
        expected = []
        for slot, number in zip(slots, numbers, strict=True):
            block = self.model.in_use.get(slot)
            if block is None or block.state not in ("landing", "filling"):
                expected.append(STALE)
            elif self.model.ready(number) is not None:
                expected.append(DUPLICATE)
                del self.model.in_use[slot]
            else:
                expected.append(PUBLISHED)
                self.model.in_use[slot] = Block("ready", number, engine_pins=int(pin))
        assert self.engine.publish(pack(slots), keys(numbers), pin=pin) == bytes(expected)

    @rule(data=st.data(), count=st.integers(0, 6))
    def free(self, data: st.DataObject, count: int) -> None:
        slots = [data.draw(st.sampled_from(self.seen)) for _ in range(count)]
        accepted = 0
        for slot in slots:
            block = self.model.in_use.get(slot)
            if block is not None and block.state != "draining":
                self.model.retire(slot)
                accepted += 1
        assert self.engine.free(pack(slots)) == accepted

    @rule()
    def drop_ready(self) -> None:
        ready = [slot for slot, block in self.model.in_use.items() if block.state == "ready"]
        for slot in ready:
            self.model.retire(slot)
        assert self.engine.drop_ready() == len(ready)

    @rule()
    def reclaim(self) -> None:
        assert self.engine.reclaim() == self.model.reclaim()

    @rule()
    def zero_control_pins(self) -> None:
        pins = sum(block.control_pins for block in self.model.in_use.values())
        for block in self.model.in_use.values():
            block.control_pins = 0
        assert self.engine.zero_control_pins() == pins

    @rule(numbers=NUMBER_LISTS, by_engine=st.booleans(), prefix=st.booleans())
    def pin(self, numbers: list[int], by_engine: bool, prefix: bool) -> None:
        expected = []
        for number in numbers:
            slot = self.model.ready(number)
            if slot is None and prefix:
                break
            expected.append(MISS_SLOT if slot is None else slot)
            if slot is not None:
                self.model.in_use[slot].engine_pins += by_engine
                self.model.in_use[slot].control_pins += not by_engine
        pinner = self.engine if by_engine else self.control
        call = pinner.pin_prefix if prefix else pinner.pin_many
        assert unpack(call(keys(numbers))) == expected

    @rule(data=st.data(), count=st.integers(0, 8), by_engine=st.booleans())
    def unpin(self, data: st.DataObject, count: int, by_engine: bool) -> None:
        slots = [data.draw(st.sampled_from(self.seen)) for _ in range(count)]
        held = 0
        for slot in slots:
            block = self.model.in_use.get(slot)
            if block is None:
                continue
            if by_engine and block.engine_pins > 0:
                block.engine_pins -= 1
                held += 1
            elif not by_engine and block.control_pins > 0:
                block.control_pins -= 1
                held += 1
        assert (self.engine if by_engine else self.control).unpin_many(pack(slots)) == held

    @rule(numbers=NUMBER_LISTS)
    def touch(self, numbers: list[int]) -> None:
        self.control.touch_many(keys(numbers))

    @rule(numbers=NUMBER_LISTS)
    def look(self, numbers: list[int]) -> None:
        slots = [self.model.ready(number) for number in numbers]
        found = [-1 if slot is None else slot & 0xFFFFFFFF for slot in slots]
        assert [self.control.find(key(number)) for number in numbers] == found
        assert self.control.contains_many(keys(numbers)) == bytes(b >= 0 for b in found)
        prefix = next((i for i, block in enumerate(found) if block < 0), len(found))
        assert self.control.lookup_prefix(keys(numbers)) == prefix

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "engine"):
            return
        in_use = self.model.in_use.values()
        expected = {
            state: sum(block.state == state for block in in_use)
            for state in ("landing", "filling", "ready", "draining")
        }
        expected["free"] = self.model.blocks - len(in_use)
        expected["control_pins"] = sum(block.control_pins for block in in_use)
        expected["engine_pins"] = sum(block.engine_pins for block in in_use)
        assert self.control.counts() == expected


TestTable = TableMachine.TestCase
TestTable.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
