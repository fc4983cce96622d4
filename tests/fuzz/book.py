"""A control plane that tells the engine's scheduler thread whatever it likes.

It may lie about what it read: the engine cannot know. It must not crash the scheduler,
make it believe in slots or keys that it was not given, or keep anything once it is dead.
"""

import math

import msgspec
from hypothesis import strategies as st
from msgspec import Struct

from mpkv.engine.metrics import GRANT, PULL, Meter
from mpkv.memory import block_ids
from mpkv.messages import KeyGroup, MissReason, Pull, Pulled, PullFailed, SlotsReturned, ToControl
from tests.engine.test_pull_book import BLOCKS, Book
from tests.fuzz.explore import explore
from tests.fuzz.shapes import bytes_of, numbers, packed, texts
from tests.support.standin import KEY_SIZE, make_keys

BLOCK_BYTES = 4096
# Two the same, one that goes on, one that has begun like them, and two that go in parts.
KEYS = [
    make_keys("prompt 0", 5),
    make_keys("prompt 0", 5),
    make_keys("prompt 0", 9),
    make_keys("prompt 0", 3) + make_keys("prompt 3", 5),
    make_keys("prompt 4", 60),
    make_keys("prompt 5", 70),
]
REQUESTS = len(KEYS)

_pulls = st.integers(1, 6) | numbers
_times = st.floats()
# The slots of the first allocations of a fresh ledger, and others.
_slots = st.lists(st.integers(0, 6), max_size=6).map(
    lambda blocks: b"".join(((1 << 32) + block).to_bytes(8, "little") for block in blocks)
) | packed(8, BLOCKS)
_records: st.SearchStrategy[Struct] = st.one_of(
    st.builds(
        Pulled,
        _pulls,
        packed(4, 6),
        _slots,
        _times,
        _times,
        _times,
        st.booleans(),
        st.none() | st.sampled_from(MissReason),
    ),
    st.builds(PullFailed, _pulls, st.sampled_from(MissReason), texts, st.booleans()),
    st.builds(SlotsReturned, _pulls),
)
# About real pulls: slots of the one for some keys of the other.
_lies = st.tuples(st.integers(0, 3), st.integers(0, 3), packed(4, 4))
_requests = st.integers(0, REQUESTS - 1)
_steps = st.one_of(
    st.tuples(st.just("start"), _requests),
    st.tuples(st.just("start"), _requests),
    st.tuples(st.just("finish"), _requests),
    st.tuples(st.just("look up"), _requests),
    st.tuples(st.just("reset"), st.just(0)),
    st.tuples(st.just("replace"), st.just(0)),
    st.tuples(st.just("late"), _requests),
    st.tuples(st.just("answer"), st.integers(0, 80)),
    st.tuples(st.just("part"), st.integers(0, 40)),
    st.tuples(st.just("fail"), st.integers(0, 1)),
    st.tuples(st.just("lie"), _lies),
    st.tuples(st.just("say"), bytes_of(_records)),
)
Argument = int | bytes | tuple[int, int, bytes]
_two_pulls: list[tuple[str, Argument]] = [("start", 0), ("start", 1)]
_histories = st.lists(_steps, max_size=30).map(lambda steps: [*_two_pulls, *steps])


class Told(Book):
    """A book whose control plane remembers what it was told."""

    def __init__(self) -> None:
        super().__init__()
        # What users see; the one of a test believes more.
        self._told = Meter(self.ledger, BLOCK_BYTES)
        pulls = self.pulls
        pulls._meter = pulls.records._meter = pulls._waits._meter = self._told
        self.open: list[Pull] = []
        # Of their keys, how many have come.
        self._come: dict[int, int] = {}
        # The latest pull that each block was given to.
        self._owners: dict[int, Pull] = {}

    def step(self, what: str, argument: Argument) -> None:
        if isinstance(argument, bytes):
            self.supervisor.answers.push(argument)
        elif isinstance(argument, tuple):
            self._lie(*argument)
        elif what == "start":
            self._start(argument)
        elif what == "finish":
            self.pulls.finished(f"r{argument}")
        elif what == "look up":
            if not self.pulls.pending(f"r{argument}"):
                self.pulls.looked_up(f"r{argument}")
        elif what == "late" and f"r{argument}" in self.pulls._by_request:
            self.pulls._by_request[f"r{argument}"].deadline = 0.0
            assert not self.pulls.pending(f"r{argument}")
        elif what == "reset":
            self.ledger.set_epoch(self.ledger.epoch + 1)
            self.pulls.cache_reset()
            self.ledger.drop_ready()
        elif what == "replace":
            self.supervisor.next_generation()
            self.open.clear()
        elif what == "answer" and self.open:
            self._part(self.open.pop(0), argument, more=False)
        elif what == "part" and self.open:
            self._part(self.open[0], argument, more=True)
        elif what == "fail" and self.open:
            failed = PullFailed(self.open.pop(0).pull, MissReason.PEER_DOWN, "", bool(argument))
            self.supervisor.say(failed)
        self.pulls.drain()
        self.pulls.start_waiting()
        self._listen()

    def check(self) -> None:
        """What it believes, it was told of slots and keys that belong together."""
        counts = self.ledger.counts()
        claims = self.pulls.claims
        assert counts["landing"] + counts["engine_pins"] == claims.taken
        assert 0 <= claims.small <= BLOCKS // 4
        assert 0 <= claims.large <= BLOCKS
        self._check_waits()
        stats = self._told.take(0)
        for delay in (GRANT, PULL) if stats is not None else ():
            for samples in stats.data["data"].get(delay, {}).values():
                assert all(0.0 <= sample < math.inf for sample in samples)
        for key in (key for keys in KEYS for key in keys):
            block = self.ledger.find(key)
            assert block < 0 or key in self._owners[block].groups[0].keys

    def _start(self, request: int) -> None:
        """As the connector does it: what is here is not asked for."""
        keys = KEYS[request]
        here = self.ledger.lookup_prefix(b"".join(keys))
        group = KeyGroup(b"".join(keys[here:]), 16, 0)
        if group.keys:
            present = b"".join(keys[:here])
            self.pulls.start(f"r{request}", f"peer:{request % 2}", (group,), present)

    def _check_waits(self) -> None:
        """Who waits, waits for something that will end, and each pull knows who does."""
        pulls = self.pulls
        under_way = [*pulls.turns, *(record.pull for record in pulls.records.open.values())]
        for pull in under_way:
            assert not pull.over
            assert all(span in span.waiter.spans for span in pull.spans)
        for waiter in pulls._by_request.values():
            assert bool(waiter.spans) == (not waiter.settled)
            assert all(span.pull in under_way for span in waiter.spans)
            assert all(span in span.pull.spans for span in waiter.spans)
        assert all(pull in under_way for pull in pulls.coming._pulls)
        records = [r for r in pulls.records.open.values() if r.pull in pulls.coming._pulls]
        keys = [
            (record.pull.asker.epoch, record.keys[KEY_SIZE * at :][:KEY_SIZE])
            for record in records
            for at, seen in enumerate(record.seen)
            if not seen
        ]
        assert len(keys) == len(set(keys)), "it comes twice"
        assert all(pull.spans for pull in pulls.turns)

    def _part(self, pull: Pull, count: int, more: bool) -> None:
        first = self._come.get(pull.pull, 0)
        end = self._come[pull.pull] = min(first + count, len(pull.slots) // 8)
        self.supervisor.say_part(pull, first, end, more)

    def _listen(self) -> None:
        while (record := self.supervisor.pulls.pop()) is not None:
            message = msgspec.msgpack.decode(record, type=ToControl)
            if isinstance(message, Pull):
                self.open.append(message)
                for block in memoryview(block_ids(message.slots)).cast("I"):
                    self._owners[block] = message

    def _lie(self, about: int, by: int, indexes: bytes) -> None:
        if len(self.open) > max(about, by):
            pull, slots = self.open[about], self.open[by].slots[: 2 * len(indexes)]
            now = pull.started
            self.supervisor.say(Pulled(pull.pull, indexes, slots, now, now, now))


def _examine(history: list[tuple[str, Argument]]) -> None:
    book = Told()
    for what, argument in history:
        book.step(what, argument)
        book.check()
    for request in range(REQUESTS):
        book.pulls.finished(f"r{request}")
    book.supervisor.next_generation()
    book.pulls.drain()
    book.pulls.start_waiting()
    assert book.pulls.idle()
    assert book.pulls.claims.taken == 0
    assert len(book.pulls.coming) == 0
    counts = book.ledger.counts()
    assert counts["free"] + counts["ready"] == BLOCKS, counts
    assert counts["engine_pins"] == 0
    assert counts["ready"] == book.hits(list({key for keys in KEYS for key in keys}))


def run(seconds: float, seed: int) -> int:
    return explore(_examine, _histories, seconds, seed)
