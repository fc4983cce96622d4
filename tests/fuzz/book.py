"""A control plane that tells the engine's scheduler thread whatever it likes.

It may lie about what it read: the engine cannot know. It must not crash the scheduler,
make it believe in slots or keys that it was not given, or keep anything once it is dead.
"""

import msgspec
from hypothesis import strategies as st
from msgspec import Struct

from mpkv.messages import MissReason, Pull, Pulled, PullFailed, SlotsReturned, ToControl
from tests.engine.test_pull_book import BLOCKS, Book
from tests.fuzz.explore import explore
from tests.fuzz.shapes import bytes_of, numbers, packed, texts
from tests.support.standin import make_keys

REQUESTS = 4
KEYS = [make_keys(f"prompt {number}", 5) for number in range(REQUESTS)]

_pulls = st.integers(1, 6) | numbers
_times = st.floats(allow_nan=True, allow_infinity=True)
# The slots of the first allocations of a fresh ledger, and others.
_slots = st.lists(st.integers(0, 6), max_size=6).map(
    lambda blocks: b"".join(((1 << 32) + block).to_bytes(8, "little") for block in blocks)
) | packed(8, BLOCKS)
_records: st.SearchStrategy[Struct] = st.one_of(
    st.builds(Pulled, _pulls, packed(4, 6), _slots, _times, _times, _times),
    st.builds(PullFailed, _pulls, st.sampled_from(MissReason), texts, st.booleans()),
    st.builds(SlotsReturned, _pulls),
)
_requests = st.integers(0, REQUESTS - 1)
_steps = st.one_of(
    st.tuples(st.just("start"), _requests),
    st.tuples(st.just("start"), _requests),
    st.tuples(st.just("finish"), _requests),
    st.tuples(st.just("look up"), _requests),
    st.tuples(st.just("reset"), st.just(0)),
    st.tuples(st.just("replace"), st.just(0)),
    st.tuples(st.just("answer"), st.integers(0, 5)),
    st.tuples(st.just("say"), bytes_of(_records)),
    st.tuples(st.just("say"), bytes_of(_records)),
)
_histories = st.lists(_steps, max_size=30)


def _step(book: Book, what: str, argument: int | bytes) -> None:
    if isinstance(argument, bytes):
        book.supervisor.answers.push(argument)
    elif what == "start":
        book.start(f"r{argument}", KEYS[argument])
    elif what == "finish":
        book.pulls.finished(f"r{argument}")
    elif what == "look up":
        if not book.pulls.pending(f"r{argument}"):
            book.pulls.looked_up(f"r{argument}")
    elif what == "reset":
        book.ledger.set_epoch(book.ledger.epoch + 1)
        book.pulls.cache_reset()
        book.ledger.drop_ready()
    elif what == "replace":
        book.supervisor.next_generation()
    elif what == "answer":
        _answer_truly(book, argument)
    book.pulls.drain()
    book.pulls.start_waiting()


def _answer_truly(book: Book, count: int) -> None:
    """What a sane control plane says of the next pull."""
    record = book.supervisor.pulls.pop()
    message = msgspec.msgpack.decode(record, type=ToControl) if record is not None else None
    if isinstance(message, Pull):
        book.supervisor.say_pulled(message, count)


def _examine(history: list[tuple[str, int | bytes]]) -> None:
    book = Book()
    for what, argument in history:
        _step(book, what, argument)
        counts = book.ledger.counts()
        assert counts["landing"] + counts["engine_pins"] <= BLOCKS // 4
        # Told or true, a hit is of a key that some request has asked for.
        assert counts["ready"] <= sum(len(keys) for keys in KEYS)
    for request in range(REQUESTS):
        book.pulls.finished(f"r{request}")
    book.supervisor.next_generation()
    book.pulls.drain()
    book.pulls.start_waiting()
    assert book.pulls.idle()
    assert book.pulls._claimed == 0
    counts = book.ledger.counts()
    assert counts["free"] + counts["ready"] == BLOCKS, counts
    assert counts["engine_pins"] == 0
    assert counts["ready"] == book.hits([key for keys in KEYS for key in keys])


def run(seconds: float, seed: int) -> int:
    return explore(_examine, _histories, seconds, seed)
