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
from mpkv.messages import MissReason, Pull, Pulled, PullFailed, SlotsReturned, ToControl
from tests.engine.test_pull_book import BLOCKS, Book
from tests.fuzz.explore import explore
from tests.fuzz.shapes import bytes_of, numbers, packed, texts
from tests.support.standin import make_keys

REQUESTS = 4
BLOCK_BYTES = 4096
KEYS = [make_keys(f"prompt {number}", 5) for number in range(REQUESTS)]

_pulls = st.integers(1, 6) | numbers
_times = st.floats()
# The slots of the first allocations of a fresh ledger, and others.
_slots = st.lists(st.integers(0, 6), max_size=6).map(
    lambda blocks: b"".join(((1 << 32) + block).to_bytes(8, "little") for block in blocks)
) | packed(8, BLOCKS)
_records: st.SearchStrategy[Struct] = st.one_of(
    st.builds(Pulled, _pulls, packed(4, 6), _slots, _times, _times, _times),
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
    st.tuples(st.just("answer"), st.integers(0, 5)),
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
        self._told = self.pulls._meter = Meter(self.ledger, BLOCK_BYTES)
        self.open: list[Pull] = []
        # The latest pull that each block was given to.
        self._owners: dict[int, Pull] = {}

    def step(self, what: str, argument: Argument) -> None:
        if isinstance(argument, bytes):
            self.supervisor.answers.push(argument)
        elif isinstance(argument, tuple):
            self._lie(*argument)
        elif what == "start":
            self.start(f"r{argument}", KEYS[argument])
        elif what == "finish":
            self.pulls.finished(f"r{argument}")
        elif what == "look up":
            if not self.pulls.pending(f"r{argument}"):
                self.pulls.looked_up(f"r{argument}")
        elif what == "reset":
            self.ledger.set_epoch(self.ledger.epoch + 1)
            self.pulls.cache_reset()
            self.ledger.drop_ready()
        elif what == "replace":
            self.supervisor.next_generation()
            self.open.clear()
        elif what == "answer" and self.open:
            self.supervisor.say_pulled(self.open.pop(0), argument)
        self.pulls.drain()
        self.pulls.start_waiting()
        self._listen()

    def check(self) -> None:
        """What it believes, it was told of slots and keys that belong together."""
        counts = self.ledger.counts()
        assert counts["landing"] + counts["engine_pins"] <= BLOCKS // 4
        stats = self._told.take(0)
        for delay in (GRANT, PULL) if stats is not None else ():
            for samples in stats.data["data"].get(delay, {}).values():
                assert all(0.0 <= sample < math.inf for sample in samples)
        for key in (key for keys in KEYS for key in keys):
            block = self.ledger.find(key)
            assert block < 0 or key in self._owners[block].groups[0].keys

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
    counts = book.ledger.counts()
    assert counts["free"] + counts["ready"] == BLOCKS, counts
    assert counts["engine_pins"] == 0
    assert counts["ready"] == book.hits([key for keys in KEYS for key in keys])


def run(seconds: float, seed: int) -> int:
    return explore(_examine, _histories, seconds, seed)
