"""How much of the tier pulls may have: alone, and among many."""

import struct
import time

import pytest

from mpkv.memory import FILLING
from mpkv.messages import KeyGroup, MissReason, Pulled, PullFailed
from tests.engine.book import BLOCKS, Book
from tests.engine.test_shared_pulls import asked, step
from tests.support.standin import make_keys

# Of 64: beside a quarter for small pulls and an eighth for stores.
MOST_LARGE = 40


@pytest.fixture
def book() -> Book:
    return Book()


def store(book: Book, name: str, count: int) -> bool:
    allocated = book.ledger.allocate(count, FILLING)
    if allocated is None:
        return False
    assert not any(book.ledger.publish(allocated[0], b"".join(make_keys(name, count)), False))
    return True


def end(book: Book, *requests: str) -> None:
    for request in requests:
        book.pulls.looked_up(request)
        book.pulls.finished(request)


def test_a_pull_alone_may_take_the_whole_tier(book: Book) -> None:
    assert store(book, "others", BLOCKS)
    keys = make_keys("k", BLOCKS)
    book.start("r", keys)
    (first,) = asked(book)
    assert len(first.slots) == 8 * MOST_LARGE
    assert store(book, "meanwhile", BLOCKS - MOST_LARGE), "stores find room"
    book.supervisor.say_pulled(first, MOST_LARGE)
    (second,) = step(book)
    assert second.groups[0].keys == b"".join(keys[MOST_LARGE:])
    assert second.deadline == first.deadline
    book.supervisor.say_pulled(second, BLOCKS - MOST_LARGE)
    assert step(book) == []
    assert not book.pulls.pending("r")
    assert book.hits(keys) == BLOCKS
    assert not book.meter.missed_blocks
    end(book, "r")
    assert book.pulls.claims.taken == 0


def test_what_is_in_use_is_left_in_peace_and_what_is_not_is_taken(book: Book) -> None:
    assert store(book, "in use", 30)
    pins = book.ledger.pin_many(b"".join(make_keys("in use", 30)))
    keys = make_keys("k", 50)
    book.start("r", keys)
    (first,) = asked(book)
    assert len(first.slots) == 8 * 34
    book.supervisor.say_pulled(first, 34)
    assert step(book) == []
    assert book.pulls.pending("r")
    # A load has ended.
    book.ledger.unpin_many(pins)
    (second,) = step(book)
    assert len(second.slots) == 8 * 16
    book.supervisor.say_pulled(second, 16)
    assert step(book) == []
    assert book.hits(keys) == 50


def test_what_can_never_fit_is_cut_and_counted(book: Book) -> None:
    keys = make_keys("k", BLOCKS + 10)
    for request in ("r", "same"):
        book.start(request, keys)
    assert book.meter.missed_blocks == {MissReason.NO_SPACE: 10}
    (first,) = asked(book)
    book.supervisor.say_pulled(first, MOST_LARGE)
    (second,) = step(book)
    assert second.groups[0].keys == b"".join(keys[MOST_LARGE:BLOCKS])
    book.supervisor.say_pulled(second, BLOCKS - MOST_LARGE)
    assert step(book) == []
    assert book.hits(keys) == BLOCKS
    assert not book.meter.misses
    assert book.meter.missed_blocks == {MissReason.NO_SPACE: 10}


def test_small_ones_pass_a_large_one_that_goes_on_in_parts(book: Book) -> None:
    large = make_keys("large", 60)
    book.start("large", large)
    (first,) = asked(book)
    small = {f"small {number}": make_keys(f"s{number}", 8) for number in range(6)}
    for request, keys in small.items():
        book.start(request, keys)
    pulls = asked(book)
    assert [pull.request for pull in pulls] == ["small 0", "small 1"]
    book.supervisor.say_pulled(first, MOST_LARGE)
    assert step(book) == [], "it is not alone"
    for number in range(6):
        book.supervisor.say_pulled(pulls[number], 8)
        step_pulls = step(book)
        assert not book.pulls.pending(f"small {number}")
        assert book.hits(small[f"small {number}"]) == 8
        end(book, f"small {number}")
        pulls += step_pulls + step(book)
    assert pulls[6].request == "large"
    assert pulls[6].groups[0].keys == b"".join(large[MOST_LARGE:])
    book.supervisor.say_pulled(pulls[6], 20)
    assert step(book) == []
    assert not book.pulls.pending("large")
    assert book.hits(large) == 60
    assert not book.meter.missed_blocks


def test_two_large_ones_do_not_wait_in_a_circle(book: Book) -> None:
    """The second has what is left at once, and its rest when the first is done."""
    a, b, c = make_keys("a", 30), make_keys("b", 30), make_keys("c", 30)
    for name, keys in (("a", a), ("b", b), ("c", c)):
        book.start(name, keys)
    first, second = asked(book)
    assert (len(first.slots), len(second.slots)) == (8 * 30, 8 * 10)
    book.supervisor.say_pulled(second, 10)
    assert step(book) == []
    book.supervisor.say_pulled(first, 30)
    assert step(book) == []
    assert not book.pulls.pending("a")
    end(book, "a")
    (rest, third) = step(book)
    assert rest.groups[0].keys == b"".join(b[10:])
    assert (third.request, len(third.slots)) == ("c", 8 * 10)
    book.supervisor.say_pulled(rest, 20)
    book.supervisor.say_pulled(third, 10)
    assert step(book) == []
    assert not book.pulls.pending("b")
    assert book.hits(b) == 30
    end(book, "b")
    (last,) = step(book)
    book.supervisor.say_pulled(last, 20)
    assert step(book) == []
    assert book.hits(c) == 30
    assert not book.meter.misses


def test_the_rest_that_is_in_use_is_not_waited_for_while_others_wait() -> None:
    book = Book()
    a, b = make_keys("a", BLOCKS), make_keys("b", BLOCKS)
    assert store(book, "loaded", 8)
    book.ledger.pin_many(b"".join(make_keys("loaded", 8)))
    book.start("a", a)
    book.start("b", b)
    (first,) = asked(book)
    book.supervisor.say_pulled(first, MOST_LARGE)
    (second,) = step(book)
    assert (second.request, len(second.slots)) == ("a", 8 * 16)
    book.supervisor.say_pulled(second, 16)
    assert step(book) == []
    assert not book.pulls.pending("a")
    assert book.hits(a) == 56
    assert book.meter.missed_blocks == {MissReason.NO_SPACE: 8}
    assert book.pulls.pending("b")
    end(book, "a")
    (third,) = step(book)
    assert (third.request, len(third.slots)) == ("b", 8 * MOST_LARGE)


def test_large_ones_without_room_end_by_their_deadlines() -> None:
    book = Book(deadline_s=0.2)
    keys = make_keys("a", BLOCKS)
    assert store(book, "loaded", 8)
    book.ledger.pin_many(b"".join(make_keys("loaded", 8)))
    book.start("a", keys)
    book.start("b", make_keys("b", 8))
    first, second = asked(book)
    book.supervisor.say_pulled(first, len(first.slots) // 8)
    until = time.monotonic() + 10
    while book.pulls.pending("a"):
        assert step(book) == []
        assert time.monotonic() < until
    assert book.hits(keys) == len(first.slots) // 8 == 40
    assert book.meter.missed_blocks == {MissReason.NO_SPACE: 24}
    assert not book.meter.misses
    end(book, "a", "b")
    book.supervisor.say(PullFailed(second.pull, MissReason.TIMED_OUT, "", False))
    book.pulls.drain()
    assert book.pulls.idle()
    assert book.pulls.claims.taken == 0


def test_one_that_waits_for_room_holds_nothing_that_others_wait_for(book: Book) -> None:
    """Both hold what others have pulled, and need more than is left beside that."""
    a, b = make_keys("a", 20), make_keys("b", 20)
    for name, keys in (("a", a), ("b", b)):
        book.start(f"{name}0", keys[:8])
    for name, keys in (("a", a), ("b", b)):
        book.start(f"{name}1", keys)
    pulls = asked(book)
    assert [pull.request for pull in pulls] == ["a0", "b0"]
    for pull in pulls:
        book.supervisor.say_pulled(pull, 8)
    assert step(book) == []
    end(book, "a0", "b0")
    (third,) = step(book)
    assert third.groups[0].keys == b"".join(a[8:])
    book.supervisor.say_pulled(third, 12)
    assert step(book) == []
    assert not book.pulls.pending("a1")
    end(book, "a1")
    (fourth,) = step(book)
    book.supervisor.say_pulled(fourth, 12)
    assert step(book) == []
    assert book.hits(a + b) == 40
    end(book, "b1")
    assert book.pulls.claims.taken == 0


def test_a_pull_for_more_than_a_record_holds_takes_several() -> None:
    count = 131_072
    book = Book(blocks=300_000)
    keys = make_keys("k", count)
    book.start("r", keys)
    come = 0
    pulls = asked(book)
    while pulls:
        (pull,) = pulls
        assert pull.groups[0].keys[:36] == keys[come]
        part = len(pull.slots) // 8
        book.supervisor.say_pulled(pull, part)
        come += part
        pulls = step(book)
    assert come == count
    assert not book.pulls.pending("r")
    assert book.ledger.lookup_prefix(b"".join(keys)) == count
    assert not book.meter.missed_blocks


def test_a_failure_after_parts_counts_what_did_not_come(book: Book) -> None:
    keys = make_keys("k", 16)
    book.start("r", keys)
    (pull,) = asked(book)
    book.supervisor.say_part(pull, 0, 4)
    book.supervisor.say_part(pull, 4, 6)
    book.pulls.drain()
    assert book.hits(keys) == 6, "others may use them"
    assert book.pulls.pending("r")
    book.supervisor.say(PullFailed(pull.pull, MissReason.PEER_DOWN, "gone", True))
    book.pulls.drain()
    assert not book.pulls.pending("r")
    assert book.pulls.adopted("r", keys[5])
    assert book.hits(keys) == 6
    assert not book.meter.misses, "some came"
    assert book.meter.missed_blocks == {MissReason.PEER_DOWN: 10}
    assert book.ledger.counts()["landing"] == 10
    book.supervisor.next_generation()
    book.pulls.drain()
    end(book, "r")
    assert book.ledger.counts()["free"] == BLOCKS - 6


@pytest.mark.parametrize("reason", [None, MissReason.LEASE_LOST])
def test_an_answer_that_falls_short_counts_the_rest(book: Book, reason: MissReason | None) -> None:
    book.start("r", make_keys("k", 10))
    (pull,) = asked(book)
    book.supervisor.say_part(pull, 0, 7, more=False, missing=reason)
    book.pulls.drain()
    assert not book.meter.misses
    assert book.meter.missed_blocks == {reason or MissReason.NOT_HELD: 3}


def test_parts_may_come_in_any_order(book: Book) -> None:
    keys = make_keys("k", 10)
    book.start("r", keys)
    book.pulls.start("s", "peer:1", (KeyGroup(b"".join(keys[:6]), 16, 0),))
    (pull,) = asked(book)
    now = pull.started
    book.supervisor.say(
        Pulled(pull.pull, struct.pack("=4I", 6, 7, 8, 9), pull.slots[:32], now, now, now, True)
    )
    book.pulls.drain()
    assert book.pulls.pending("s")
    book.supervisor.say(
        Pulled(pull.pull, struct.pack("=6I", *range(6)), pull.slots[32:], now, now, now, True)
    )
    book.pulls.drain()
    assert not book.pulls.pending("s")
    assert not book.pulls.pending("r")
    book.supervisor.say(Pulled(pull.pull, b"", b"", now, now, now))
    book.pulls.drain()
    assert book.hits(keys) == 10
    assert not book.meter.missed_blocks
    assert book.pulls.idle()
