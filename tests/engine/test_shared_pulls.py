"""Requests that want the same blocks at once: what is on its way is waited for."""

import time

import msgspec
import pytest

from mpkv.memory import FILLING
from mpkv.messages import (
    CancelPull,
    KeyGroup,
    MissReason,
    Pull,
    PullFailed,
    ToControl,
)
from tests.engine.book import Book
from tests.support.standin import KEY_SIZE, make_keys

BLOCKS = 2048
REQUESTS = [f"r{number}" for number in range(16)]


@pytest.fixture
def book() -> Book:
    return Book(blocks=BLOCKS)


def asked(book: Book) -> list[Pull]:
    """All pulls that were sent since the last time; nothing else was."""
    found = []
    while (record := book.supervisor.pulls.pop()) is not None:
        message = msgspec.msgpack.decode(record, type=ToControl)
        assert isinstance(message, Pull)
        found.append(message)
    return found


def step(book: Book) -> list[Pull]:
    """One turn of the scheduler; what it has asked for."""
    book.pulls.drain()
    book.pulls.start_waiting()
    return asked(book)


def start_all(book: Book, keys: list[bytes]) -> None:
    for request in REQUESTS:
        book.start(request, keys)


def waiting(book: Book) -> list[str]:
    return [request for request in REQUESTS if book.pulls.pending(request)]


def end_all(book: Book) -> None:
    for request in REQUESTS:
        book.pulls.looked_up(request)
        book.pulls.finished(request)
    assert book.pulls.claims.taken == 0
    assert len(book.pulls.coming) == 0
    counts = book.ledger.counts()
    assert (counts["landing"], counts["engine_pins"]) == (0, 0)


def test_sixteen_requests_for_the_same_blocks_ask_once(book: Book) -> None:
    keys = make_keys("k", 256)
    start_all(book, keys)
    (pull,) = asked(book)
    assert len(pull.slots) == 8 * 256
    assert waiting(book) == REQUESTS
    book.supervisor.say_pulled(pull, 256)
    assert step(book) == []
    assert waiting(book) == []
    assert book.hits(keys) == 256
    assert book.meter.blocks == 256
    assert book.meter.lookups == 16
    assert not book.meter.misses
    # Pinned, and counted, once; for each of them until it has looked.
    for request in REQUESTS:
        assert all(book.pulls.adopted(request, key) for key in keys)
        assert book.ledger.counts()["engine_pins"] == book.pulls.claims.taken == 256
        book.pulls.looked_up(request)
    assert book.ledger.counts()["engine_pins"] == 0
    end_all(book)


def test_the_first_may_go_while_others_wait(book: Book) -> None:
    keys = make_keys("k", 256)
    start_all(book, keys)
    (pull,) = asked(book)
    book.pulls.finished(REQUESTS[0])
    assert asked(book) == [], "it goes on"
    book.supervisor.say_pulled(pull, 256)
    assert step(book) == []
    assert waiting(book) == []
    assert book.hits(keys) == 256
    assert not book.meter.misses
    end_all(book)


def test_the_last_to_go_cancels(book: Book) -> None:
    start_all(book, make_keys("k", 20))
    (pull,) = asked(book)
    for request in REQUESTS:
        book.pulls.finished(request)
    record = book.supervisor.pulls.pop()
    assert record is not None
    assert msgspec.msgpack.decode(record, type=ToControl) == CancelPull(pull.pull)
    # What is cancelled comes for nobody else.
    book.start("late", make_keys("k", 20))
    assert len(asked(book)) == 1
    book.supervisor.say(PullFailed(pull.pull, MissReason.ABORTED, "", False))
    book.pulls.drain()
    assert book.meter.misses == {MissReason.ABORTED: 1}
    assert book.meter.missed_blocks == {MissReason.ABORTED: 20}


@pytest.mark.parametrize("held", [False, True])
def test_when_the_first_fails_one_of_the_others_asks(book: Book, held: bool) -> None:
    keys = make_keys("k", 256)
    for number, request in enumerate(REQUESTS):
        book.pulls.start(request, f"peer:{number + 1}", (KeyGroup(b"".join(keys), 16, 0),))
    (first,) = asked(book)
    book.supervisor.say(PullFailed(first.pull, MissReason.TIMED_OUT, "late", held))
    (second,) = step(book)
    assert (second.request, second.peer) == ("r1", "peer:2")
    assert second.groups == first.groups
    assert waiting(book) == REQUESTS[1:]
    book.supervisor.say_pulled(second, 256)
    assert step(book) == []
    assert waiting(book) == []
    assert book.hits(keys) == 256
    assert book.meter.misses == {MissReason.TIMED_OUT: 1}
    assert book.meter.missed_blocks == {MissReason.TIMED_OUT: 256}
    if held:
        book.supervisor.next_generation()
        book.pulls.drain()
    end_all(book)


def test_each_asks_by_its_own_deadline(book: Book) -> None:
    keys = make_keys("k", 4)
    book.start("r0", keys)
    (first,) = asked(book)
    time.sleep(0.02)
    book.start("r1", keys)
    book.supervisor.say(PullFailed(first.pull, MissReason.TIMED_OUT, "late", False))
    (second,) = step(book)
    assert second.deadline > first.deadline + 0.02


def test_a_node_that_fails_twice_is_not_asked_by_all_in_turn(book: Book) -> None:
    start_all(book, make_keys("k", 8))
    for _ in range(2):
        (pull,) = asked(book)
        book.supervisor.say(PullFailed(pull.pull, MissReason.PEER_DOWN, "gone", False))
        book.pulls.drain()
        book.pulls.start_waiting()
    assert asked(book) == []
    assert waiting(book) == []
    assert book.meter.misses == {MissReason.PEER_DOWN: 2}
    assert book.meter.missed_blocks == {MissReason.PEER_DOWN: 16}
    end_all(book)


def test_what_a_node_does_not_hold_is_asked_of_another_only(book: Book) -> None:
    keys = make_keys("k", 20)
    group = (KeyGroup(b"".join(keys), 16, 0),)
    for number, request in enumerate(REQUESTS):
        peer, also = (("a:1", ("a:2",)), ("a:2", ("a:1",)), ("b:1", ()))[number % 3]
        book.pulls.start(request, peer, group, also=also)
    (first,) = asked(book)
    book.supervisor.say_pulled(first, 12)
    (second,) = step(book)
    assert (second.peer, second.groups[0].keys) == ("b:1", b"".join(keys[12:]))
    # Of the others those that name node a have got what there is there.
    assert waiting(book) == [request for n, request in enumerate(REQUESTS) if n % 3 == 2]
    book.supervisor.say_pulled(second, 8)
    assert step(book) == []
    assert waiting(book) == []
    assert book.hits(keys) == 20
    assert not book.meter.misses
    assert book.meter.missed_blocks == {MissReason.NOT_HELD: 8}
    end_all(book)


def test_longer_prompts_ask_for_what_others_do_not_bring(book: Book) -> None:
    common = make_keys("common", 100)
    own = {request: make_keys(request, 3) for request in REQUESTS}
    book.start("r0", common)
    for request in REQUESTS[1:]:
        book.start(request, common + own[request])
    first, *others = asked(book)
    assert [len(pull.slots) // 8 for pull in others] == [3] * 15
    book.supervisor.say_pulled(first, 100)
    assert step(book) == []
    assert waiting(book) == REQUESTS[1:]
    for pull in others:
        book.supervisor.say_pulled(pull, 3)
    assert step(book) == []
    assert waiting(book) == []
    assert all(book.hits(common + own[request]) == 103 for request in REQUESTS[1:])
    assert book.pulls.adopted("r3", common[0])
    assert book.pulls.adopted("r3", own["r3"][0])
    assert book.meter.blocks == 100 + 15 * 3
    end_all(book)


def test_a_chain_of_prompts_each_one_longer(book: Book) -> None:
    keys = make_keys("k", 160)
    for number, request in enumerate(REQUESTS):
        book.start(request, keys[: 10 * number + 10])
    pulls = asked(book)
    assert [pull.groups[0].keys for pull in pulls] == [
        b"".join(keys[10 * number : 10 * number + 10]) for number in range(16)
    ]
    for pull in reversed(pulls):
        assert waiting(book)
        book.supervisor.say_pulled(pull, 10)
        assert step(book) == []
    assert waiting(book) == []
    end_all(book)


def test_a_prompt_that_ends_or_differs_earlier_waits_only_so_long(book: Book) -> None:
    keys, other = make_keys("k", 200), make_keys("other", 20)
    book.start("r0", keys)
    book.start("r1", keys[:50])
    book.start("r2", keys[:77] + other)
    pull, rest = asked(book)
    assert rest.groups[0].keys == b"".join(other)
    book.supervisor.say_part(pull, 0, 80)
    book.supervisor.say_pulled(rest, 20)
    assert step(book) == []
    assert waiting(book) == ["r0"]
    book.supervisor.say_part(pull, 80, 200, more=False)
    assert step(book) == []
    assert waiting(book) == []
    end_all(book)


def test_who_comes_between_two_parts_waits_for_the_rest(book: Book) -> None:
    keys = make_keys("k", 40)
    book.start("r0", keys)
    (pull,) = asked(book)
    book.supervisor.say_part(pull, 0, 30)
    book.pulls.drain()
    here = b"".join(keys[:30])
    book.pulls.start("r1", "peer:1", (KeyGroup(b"".join(keys[30:]), 16, 0),), here)
    assert asked(book) == []
    # It holds what the first one holds.
    book.pulls.looked_up("r0")
    assert book.ledger.counts()["engine_pins"] == 30
    assert book.pulls.claims.taken == 40
    book.supervisor.say_part(pull, 30, 40, more=False)
    assert step(book) == []
    assert waiting(book) == []
    end_all(book)


def test_a_hole_is_asked_for_and_not_what_comes_behind_it(book: Book) -> None:
    keys = make_keys("k", 30)
    book.start("r0", keys[:20])
    book.pulls.start("r1", "other:1", (KeyGroup(b"".join(keys), 16, 0),))
    first, suffix = asked(book)
    book.supervisor.say_pulled(first, 5)
    (hole,) = step(book)
    assert hole.groups[0].keys == b"".join(keys[5:20])
    assert hole.peer == "other:1"
    book.supervisor.say_pulled(suffix, 10)
    book.supervisor.say_pulled(hole, 15)
    assert step(book) == []
    assert waiting(book) == []
    assert book.hits(keys) == 30
    end_all(book)


def test_a_prefix_that_will_not_come_calls_off_what_was_to_follow(book: Book) -> None:
    keys = make_keys("k", 30)
    book.start("r0", keys[:20])
    book.start("r1", keys)
    first, suffix = asked(book)
    book.supervisor.say_pulled(first, 5)
    book.pulls.drain()
    assert waiting(book) == []
    record = book.supervisor.pulls.pop()
    assert record is not None
    assert msgspec.msgpack.decode(record, type=ToControl) == CancelPull(suffix.pull)
    book.supervisor.say(PullFailed(suffix.pull, MissReason.ABORTED, "", False))
    assert step(book) == []
    assert book.meter.missed_blocks == {MissReason.NOT_HELD: 15, MissReason.ABORTED: 10}
    end_all(book)


def test_those_who_wait_for_a_pull_that_waits_take_its_place(book: Book) -> None:
    most = BLOCKS // 4
    book.start("large", make_keys("a", most))
    (pull,) = asked(book)
    keys = make_keys("k", 8)
    start_all(book, keys)
    assert asked(book) == []
    book.pulls.finished("r0")
    book.supervisor.say_pulled(pull, most)
    book.pulls.drain()
    book.pulls.finished("large")
    (pull,) = step(book)
    assert pull.request == "r1"
    book.supervisor.say_pulled(pull, 8)
    assert step(book) == []
    assert waiting(book) == []
    assert not book.meter.misses
    end_all(book)


def test_helpers_that_die_end_the_wait_of_all_or_are_asked_anew(book: Book) -> None:
    keys = make_keys("k", 8)
    start_all(book, keys)
    assert len(asked(book)) == 1
    book.supervisor.next_generation()
    book.pulls.drain()
    book.pulls.start_waiting()
    (pull,) = asked(book)
    assert pull.request == "r1"
    book.supervisor.next_generation()
    book.supervisor.link = None
    assert step(book) == []
    assert waiting(book) == []
    assert set(book.meter.misses) == {MissReason.HELPERS_DOWN}
    end_all(book)


def test_a_reset_ends_the_wait_of_all(book: Book) -> None:
    keys = make_keys("k", 8)
    start_all(book, keys)
    (old,) = asked(book)
    book.ledger.set_epoch(book.ledger.epoch + 1)
    book.pulls.cache_reset()
    assert waiting(book) == []
    # A later one does not wait for old content.
    book.start("new", keys)
    (new,) = asked(book)
    book.supervisor.say_part(old, 0, 4)
    assert step(book) == []
    assert book.hits(keys) == 0
    book.supervisor.say_part(old, 4, 8, more=False)
    book.supervisor.say_pulled(new, 8)
    assert step(book) == []
    assert book.hits(keys) == 8
    assert book.meter.missed_blocks == {MissReason.CACHE_RESET: 8}
    book.pulls.finished("new")
    end_all(book)


def test_groups_with_windows_are_waited_for_when_they_are_the_same(book: Book) -> None:
    full = KeyGroup(b"".join(make_keys("full", 12)), 16, 0)
    windowed = KeyGroup(b"".join(make_keys("windowed", 12)), 16, 3)
    for request in REQUESTS:
        book.pulls.start(request, "peer:1", (full, windowed))
    (pull,) = asked(book)
    book.pulls.start("other", "peer:1", (full, KeyGroup(windowed.keys[KEY_SIZE:], 16, 3)))
    assert len(asked(book)) == 1
    book.supervisor.say_pulled(pull, 8)
    assert step(book) == []
    assert waiting(book) == []
    assert book.meter.missed_blocks == {MissReason.NOT_HELD: 7}
    book.pulls.finished("other")


def test_what_was_computed_meanwhile_is_not_asked_for(book: Book) -> None:
    keys = make_keys("k", 20)
    book.start("r0", keys)
    book.pulls.start("r1", "other:1", (KeyGroup(b"".join(keys), 16, 0),))
    (pull,) = asked(book)
    slots, _ = book.ledger.allocate(12, FILLING) or (b"", b"")
    book.ledger.publish(slots, b"".join(keys[:12]), False)
    book.supervisor.say(PullFailed(pull.pull, MissReason.PEER_DOWN, "gone", False))
    (second,) = step(book)
    assert second.groups[0].keys == b"".join(keys[12:])
