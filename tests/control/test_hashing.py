"""The hashing thread, on a real ledger and a real tier."""

import array
import queue
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from mpkv.cluster.settings import Integrity
from mpkv.control.checksums import ONE_IN, Job, checksum, chosen, is_sampled, keys_at
from mpkv.control.hashing import Hashing
from mpkv.memory import FILLING, LANDING, Ledger, block_ids, create_segment, map_segment
from mpkv.messages import KeyGroup, Tier
from tests.control.common import KEY_SIZE, keys, u32, wait_for

BLOCKS = 64
# Above 64 KiB, as blocks are; so hashing one lets other threads run.
BLOCK_BYTES = 80 << 10


@dataclass
class Engine:
    """What is published and landed here is what the test says."""

    ledger: Ledger = field(default_factory=lambda: Ledger.create(BLOCKS, KEY_SIZE))
    hashing: Hashing | None = None

    def __post_init__(self) -> None:
        self.fd = create_segment("tier", BLOCKS * BLOCK_BYTES)
        self.tier = map_segment(self.fd)
        self.view = Ledger.attach(self.ledger.fd)
        self.over: queue.SimpleQueue[Job] = queue.SimpleQueue()

    def start(self, eager: Integrity, blocks: int = BLOCKS) -> None:
        self.hashing = Hashing(
            Tier(self.fd, blocks, BLOCK_BYTES),
            self.view,
            eager,
            self.view.counters("control"),
            lambda: None,
        )

    def write(self, block: int, content: bytes) -> None:
        self.tier[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES] = content.ljust(BLOCK_BYTES)

    def store(self, stored: list[bytes]) -> bytes:
        allocated = self.ledger.allocate(len(stored), FILLING)
        assert allocated is not None
        for block, key in zip(u32(block_ids(allocated[0])), stored, strict=True):
            self.write(block, key)
        assert not any(self.ledger.publish(allocated[0], b"".join(stored), False))
        return allocated[0]

    def submit(
        self, integrity: Integrity, slots: bytes, of: list[bytes], *, landed: bool = False
    ) -> Job:
        assert self.hashing is not None
        job = Job(integrity, slots, b"".join(of), landed, self.over)
        self.hashing.submit(job)
        return job

    def checksums(self, job: Job) -> list[int] | None:
        """Of `job`, once it is over."""
        assert self.over.get(timeout=20.0) is job
        return None if job.checksums is None else list(array.array("Q", job.checksums))

    def hashed(self) -> int:
        return self.view.counters("control").read()["blocks_hashed"]

    def wait_hashed(self, count: int) -> None:
        wait_for(lambda: self.hashed() >= count, f"{count} blocks to be hashed")

    def close(self) -> None:
        if self.hashing is not None:
            self.hashing.close()
        self.view.close()
        self.ledger.close()


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.close()


def of(content: bytes) -> int:
    return checksum(content.ljust(BLOCK_BYTES))


def test_granted_blocks_are_hashed_once(engine: Engine) -> None:
    engine.start(Integrity.OFF)
    stored = keys("a", 5)
    slots = engine.store(stored)
    assert engine.checksums(engine.submit(Integrity.FULL, slots, stored)) == [
        of(key) for key in stored
    ]
    again = engine.submit(Integrity.FULL, slots[16:], stored[2:])
    assert engine.checksums(again) == [of(key) for key in stored[2:]]
    assert list(again.positions) == [0, 1, 2]
    assert engine.hashed() == 5
    assert engine.ledger.counts()["control_pins"] == 0


def test_published_blocks_are_hashed_before_anybody_asks(engine: Engine) -> None:
    engine.start(Integrity.FULL)
    stored = keys("a", 5)
    slots = engine.store(stored)
    engine.wait_hashed(5)
    # A fault of the memory, after that: the checksum is of what was published.
    engine.write(u32(block_ids(slots))[3], b"something else")
    assert engine.checksums(engine.submit(Integrity.FULL, slots, stored)) == [
        of(key) for key in stored
    ]
    more = engine.store(keys("b", 2))
    engine.wait_hashed(7)
    assert len(more) == 16
    assert engine.hashed() == 7


def test_another_block_in_the_same_place_has_its_own_checksum(engine: Engine) -> None:
    engine.start(Integrity.FULL)
    old = keys("old", BLOCKS)
    slots = engine.store(old)
    engine.wait_hashed(BLOCKS)
    wait_for(lambda: engine.ledger.counts()["control_pins"] == 0, "no pins")
    new = keys("new", BLOCKS)
    now = engine.store(new)
    engine.wait_hashed(2 * BLOCKS)
    assert engine.checksums(engine.submit(Integrity.FULL, now, new)) == [of(key) for key in new]
    # Of what was there before nothing is known any more.
    assert engine.checksums(engine.submit(Integrity.FULL, slots[:8], old[:1])) is None


def test_what_landed_is_hashed_as_it_is(engine: Engine) -> None:
    engine.start(Integrity.FULL)
    allocated = engine.ledger.allocate(3, LANDING)
    assert allocated is not None
    landed = keys("l", 3)
    for block, key in zip(u32(block_ids(allocated[0])), landed, strict=True):
        engine.write(block, key)
    job = engine.submit(Integrity.FULL, allocated[0], landed, landed=True)
    assert engine.checksums(job) == [of(key) for key in landed]
    # Adopted, it need not be hashed again for those who pull it from here.
    engine.ledger.publish(allocated[0], b"".join(landed), False)
    other = engine.store(keys("other", 1))
    engine.wait_hashed(4)
    assert len(other) == 8
    assert engine.hashed() == 4


def test_a_block_that_is_gone_has_no_checksum(engine: Engine) -> None:
    engine.start(Integrity.OFF)
    stored = keys("a", 3)
    slots = engine.store(stored)
    engine.ledger.free(slots[:8])
    assert engine.checksums(engine.submit(Integrity.FULL, slots, stored)) is None
    assert engine.checksums(engine.submit(Integrity.FULL, slots[8:], stored[1:])) == [
        of(key) for key in stored[1:]
    ]
    assert engine.ledger.counts()["control_pins"] == 0


def test_a_dropped_job_hashes_nothing(engine: Engine) -> None:
    engine.start(Integrity.OFF)
    stored = keys("a", 3)
    job = Job(Integrity.FULL, engine.store(stored), b"", False, engine.over)
    job.dropped = True
    assert engine.hashing is not None
    engine.hashing.submit(job)
    assert engine.checksums(job) is None
    assert engine.hashed() == 0


def test_a_tier_that_cannot_be_mapped_makes_no_checksums(engine: Engine) -> None:
    engine.start(Integrity.FULL, blocks=BLOCKS + 1)
    stored = keys("a", 1)
    assert engine.checksums(engine.submit(Integrity.FULL, engine.store(stored), stored)) is None


def test_a_sample_is_the_same_on_both_sides(engine: Engine) -> None:
    engine.start(Integrity.SAMPLED)
    stored = keys("a", BLOCKS)
    sampled = [at for at, key in enumerate(stored) if is_sampled(key)]
    assert 0 < len(sampled) < BLOCKS
    slots = engine.store(stored)
    job = engine.submit(Integrity.SAMPLED, slots, stored)
    assert engine.checksums(job) == [of(stored[at]) for at in sampled]
    assert list(job.positions) == sampled
    engine.wait_hashed(len(sampled))
    assert engine.hashed() == len(sampled)
    groups = (KeyGroup(b"".join(stored[:40]), 16, 0), KeyGroup(b"".join(stored[40:]), 16, 4))
    indexes = struct.pack(f"{len(sampled)}I", *sampled)
    assert keys_at(groups, indexes, KEY_SIZE) == b"".join(stored[at] for at in sampled)


def test_a_sample_is_one_in_sixteen_and_never_empty() -> None:
    many = keys("k", 4096)
    share = len(chosen(Integrity.SAMPLED, b"".join(many), len(many))) / len(many)
    assert 0.8 / ONE_IN < share < 1.2 / ONE_IN
    unlucky = [key for key in many if not is_sampled(key)][:3]
    assert chosen(Integrity.SAMPLED, b"".join(unlucky), 3) == [0]
    assert list(chosen(Integrity.FULL, b"", 3)) == [0, 1, 2]
