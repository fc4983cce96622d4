"""What the scheduler's side of a pull believes."""

import struct
import time
from collections.abc import Callable

import msgspec
import pytest

from mpkv.engine.records import RECORDS_PER_CALL
from mpkv.memory import FILLING
from mpkv.messages import (
    CancelPull,
    KeyGroup,
    MissReason,
    Pull,
    Pulled,
    PullFailed,
    SlotsReturned,
    ToControl,
)
from tests.engine.book import BLOCKS, Book
from tests.support.standin import KEY_SIZE, make_keys


@pytest.fixture
def book() -> Book:
    return Book()


def test_a_pulled_prefix_is_adopted_and_pinned_until_it_is_looked_up(book: Book) -> None:
    keys = make_keys("k", 10)
    book.start("r", keys)
    assert book.pulls.pending("r")
    book.supervisor.say_pulled(book.supervisor.next_pull(), 7)
    book.pulls.drain()
    assert not book.pulls.pending("r")
    assert [book.ledger.find(key) >= 0 for key in keys] == [True] * 7 + [False] * 3
    assert book.ledger.counts()["engine_pins"] == 7
    assert book.pulls.adopted("r", keys[6])
    assert not book.pulls.adopted("r", keys[7])
    assert not book.pulls.adopted("another", keys[0])
    book.pulls.looked_up("r")
    counts = book.ledger.counts()
    assert (counts["engine_pins"], counts["landing"], counts["free"]) == (0, 0, BLOCKS - 7)
    assert book.changes == [(b"".join(keys[:7]), b"")]


def test_an_announcement_of_a_dead_generation_is_not_believed(book: Book) -> None:
    """Its slots are another pull's by the time the old record would be read."""
    old, new = make_keys("old", 8), make_keys("new", 8)
    book.start("r1", old)
    old_pull = book.supervisor.next_pull()
    book.supervisor.say_pulled(old_pull, 8)
    book.supervisor.next_generation()
    book.pulls.drain()
    assert book.meter.misses == {MissReason.HELPERS_DOWN: 1}
    book.start("r2", new)
    new_pull = book.supervisor.next_pull()
    # The same words on the new ring are no better: that pull is over.
    book.supervisor.say_pulled(old_pull, 8)
    book.pulls.drain()
    assert book.hits(old + new) == 0
    book.supervisor.say_pulled(new_pull, 8)
    book.pulls.drain()
    assert (book.hits(old), book.hits(new)) == (0, 8)


def test_slots_of_a_read_that_may_still_write_are_not_used(book: Book) -> None:
    book.start("r", make_keys("k", 10))
    pull = book.supervisor.next_pull()
    book.supervisor.say(PullFailed(pull.pull, MissReason.TIMED_OUT, "late", True))
    book.pulls.drain()
    assert not book.pulls.pending("r")
    assert book.ledger.counts()["landing"] == 10
    assert not book.pulls.idle()
    book.supervisor.say(SlotsReturned(pull.pull))
    book.pulls.drain()
    assert book.ledger.counts()["free"] == BLOCKS
    assert book.pulls.idle()


def test_held_slots_return_with_the_end_of_their_generation(book: Book) -> None:
    book.start("r", make_keys("k", 10))
    pull = book.supervisor.next_pull()
    book.supervisor.say(PullFailed(pull.pull, MissReason.TIMED_OUT, "late", True))
    book.pulls.drain()
    book.supervisor.next_generation()
    book.pulls.drain()
    assert book.ledger.counts()["free"] == BLOCKS


@pytest.mark.parametrize(
    ("indexes", "slots"),
    [
        (lambda pull: struct.pack("=2I", 0, 99), lambda pull: pull.slots[:16]),
        (lambda pull: struct.pack("=2I", 0, 1), lambda pull: pull.slots[:8]),
        (lambda pull: struct.pack("=2I", 0, 1), lambda pull: pull.slots[8:24]),
        (lambda pull: struct.pack("=2I", 0, 1), lambda pull: struct.pack("=2Q", 5, 6)),
        (lambda pull: b"\0\0\0", lambda pull: pull.slots[:8]),
        (lambda pull: bytes(4 * 11), lambda pull: pull.slots + pull.slots[:8]),
    ],
)
def test_a_result_that_names_what_it_was_not_given(
    book: Book, indexes: Callable[[Pull], bytes], slots: Callable[[Pull], bytes]
) -> None:
    keys = make_keys("k", 10)
    book.start("r", keys)
    pull = book.supervisor.next_pull()
    now = pull.started
    book.supervisor.say(Pulled(pull.pull, indexes(pull), slots(pull), now, now, now))
    book.pulls.drain()
    assert book.hits(keys) == 0
    assert book.meter.misses == {MissReason.TRANSFER_FAILED: 1}
    assert book.supervisor.distrusted == [1]
    assert book.ledger.counts()["landing"] == 10
    book.supervisor.next_generation()
    book.pulls.drain()
    assert book.ledger.counts()["free"] == BLOCKS


def test_a_record_that_cannot_be_read_ends_its_generation(book: Book) -> None:
    keys = make_keys("k", 3)
    book.start("r", keys)
    assert book.supervisor.answers.push(b"\xc1 no msgpack")
    book.pulls.drain()
    assert book.supervisor.distrusted == [1]
    book.supervisor.next_generation()
    book.pulls.drain()
    assert book.hits(keys) == 0
    assert book.meter.misses == {MissReason.HELPERS_DOWN: 1}
    assert book.ledger.counts()["free"] == BLOCKS


def test_a_control_plane_that_owes_an_answer_for_too_long_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mpkv.engine.overdue.OVERDUE_S", 0.0)
    monkeypatch.setattr("mpkv.engine.overdue.AGAIN_S", 0.0)
    book = Book(deadline_s=0.001)
    book.start("r", make_keys("k", 3))
    while book.pulls.pending("r"):
        pass
    book.pulls.drain()
    assert book.supervisor.distrusted == [], "it may still be starting"
    monkeypatch.setattr("mpkv.engine.overdue.START_S", 0.0)
    book.pulls.drain()
    assert book.supervisor.distrusted == [], "the machine may have been paused"
    book.pulls.drain()
    assert book.supervisor.distrusted == [1]
    # Until its processes are reaped a READ may still write these.
    assert book.ledger.counts()["landing"] == 3
    book.supervisor.next_generation()
    book.pulls.drain()
    assert book.ledger.counts()["free"] == BLOCKS


def test_answers_that_nobody_has_read_are_not_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OVERDUE_S", "AGAIN_S", "START_S"):
        monkeypatch.setattr(f"mpkv.engine.overdue.{name}", 0.0)
    book = Book(deadline_s=0.2, blocks=8 * RECORDS_PER_CALL)
    for number in range(RECORDS_PER_CALL + 5):
        book.start(f"r{number}", make_keys(f"k{number}", 1))
        book.pulls.finished(f"r{number}")
        pull = book.supervisor.next_pull()
        assert book.supervisor.pulls.pop() is not None, "it was not cancelled"
        book.supervisor.say(PullFailed(pull.pull, MissReason.ABORTED, "", False))
    # Until all are past their deadlines.
    until = time.monotonic() + 0.25
    while time.monotonic() < until:
        pass
    while not book.pulls.idle():
        book.pulls.drain()
    assert book.supervisor.distrusted == []


def test_a_reset_settles_a_pull_whose_answer_is_still_in_the_ring(book: Book) -> None:
    keys = make_keys("k", 4)
    book.start("r", keys)
    book.supervisor.say_pulled(book.supervisor.next_pull(), 4)
    book.ledger.set_epoch(book.ledger.epoch + 1)
    book.pulls.drain()
    assert not book.pulls.pending("r")
    assert book.meter.misses == {MissReason.CACHE_RESET: 1}
    assert book.hits(keys) == 0
    assert book.ledger.counts()["free"] == BLOCKS


def test_what_is_here_is_kept_for_the_rest_to_follow(book: Book) -> None:
    """In a full tier, the slots of a pull come from others' blocks."""
    prompt, others = make_keys("prompt", 14), make_keys("others", BLOCKS - 7)
    for keys in (prompt[:7], others):
        allocated = book.ledger.allocate(len(keys), FILLING)
        assert allocated is not None
        assert not any(book.ledger.publish(allocated[0], b"".join(keys), False))
    group = KeyGroup(b"".join(prompt[7:]), 16, 0)
    book.pulls.start("r", "peer:1", (group,), present=b"".join(prompt[:7]))
    book.supervisor.say_pulled(book.supervisor.next_pull(), 7)
    book.pulls.drain()
    assert book.hits(prompt) == 14
    assert book.ledger.counts()["engine_pins"] == 14
    book.pulls.looked_up("r")
    assert book.ledger.counts()["engine_pins"] == 0


@pytest.mark.parametrize("requests", [1, 2])
def test_what_is_kept_never_has_a_pull_wait_for_itself(book: Book, requests: int) -> None:
    """Prefix and pull together are more than a quarter of the tier."""
    prompts = [make_keys(f"prompt {i}", 24) for i in range(requests)]
    for keys in prompts:
        allocated = book.ledger.allocate(14, FILLING)
        assert allocated is not None
        assert not any(book.ledger.publish(allocated[0], b"".join(keys[:14]), False))
    for i, keys in enumerate(prompts):
        group = KeyGroup(b"".join(keys[14:]), 16, 0)
        book.pulls.start(f"r{i}", "peer:1", (group,), present=b"".join(keys[:14]))
    for i, keys in enumerate(prompts):
        book.supervisor.say_pulled(book.supervisor.next_pull(), 10)
        book.pulls.drain()
        assert not book.pulls.pending(f"r{i}")
        assert book.hits(keys) == 24
        book.pulls.looked_up(f"r{i}")
        book.pulls.start_waiting()
    assert not book.meter.misses
    assert book.ledger.counts()["engine_pins"] == 0


def test_groups_are_cut_to_equal_tokens_to_fit(book: Book) -> None:
    full = KeyGroup(b"".join(make_keys("full", 40)), 16, 0)
    coarse = KeyGroup(b"".join(make_keys("coarse", 20)), 32, 0)
    windowed = KeyGroup(b"".join(make_keys("windowed", 40)), 16, 3)
    book.pulls.start("r", "peer:1", (full, coarse, windowed))
    pull = book.supervisor.next_pull()
    # Groups are not taken apart, so all must fit beside small pulls and stores, which have 24 of
    # 64: 3 for the window, and 12 steps of 2 + 1 keys.
    assert [len(group.keys) // KEY_SIZE for group in pull.groups] == [24, 12, 24]
    assert len(pull.slots) == 8 * (24 + 12 + 3)
    assert book.meter.missed_blocks == {MissReason.NO_SPACE: 63 - 39}


def test_a_pull_waits_until_it_is_known_what_the_weights_are(book: Book) -> None:
    book.ledger.set_content(b"")
    book.start("r", make_keys("k", 4))
    book.pulls.start_waiting()
    assert book.supervisor.pulls.pop() is None
    assert book.pulls.pending("r")
    book.ledger.set_content(b"what it is now..")
    book.pulls.start_waiting()
    assert book.supervisor.next_pull().content == b"what it is now.."


@pytest.mark.parametrize("later", [b"", b"other weights..."])
def test_a_pull_for_other_weights_is_never_adopted(book: Book, later: bytes) -> None:
    keys = make_keys("k", 4)
    book.start("r", keys)
    pull = book.supervisor.next_pull()
    book.ledger.set_content(later)
    book.supervisor.say_pulled(pull, 4)
    book.pulls.drain()
    assert not book.pulls.pending("r")
    assert book.hits(keys) == 0
    assert book.ledger.counts()["free"] == BLOCKS
    assert book.meter.misses == {MissReason.CONTENT: 1}


def test_a_pull_of_old_content_is_never_adopted(book: Book) -> None:
    keys = make_keys("k", 4)
    book.start("r", keys)
    pull = book.supervisor.next_pull()
    book.ledger.set_epoch(book.ledger.epoch + 1)
    book.pulls.cache_reset()
    assert not book.pulls.pending("r")
    book.supervisor.say_pulled(pull, 4)
    book.pulls.drain()
    assert book.hits(keys) == 0
    assert book.ledger.counts()["free"] == BLOCKS
    assert book.meter.misses == {MissReason.CACHE_RESET: 1}


def test_a_key_that_is_here_by_now_gives_its_slot_back(book: Book) -> None:
    keys = make_keys("k", 4)
    book.start("r", keys)
    allocated = book.ledger.allocate(2, FILLING)
    assert allocated is not None
    assert book.ledger.publish(allocated[0], b"".join(keys[:2]), False) == b"\0\0"
    book.supervisor.say_pulled(book.supervisor.next_pull(), 4)
    book.pulls.drain()
    assert book.hits(keys) == 4
    counts = book.ledger.counts()
    assert (counts["ready"], counts["landing"], counts["engine_pins"]) == (4, 0, 2)
    book.pulls.finished("r")
    assert book.ledger.counts()["engine_pins"] == 0


def test_the_request_gives_up_at_its_deadline_whatever_the_helpers_do() -> None:
    book = Book(deadline_s=0.0)
    keys = make_keys("k", 4)
    book.start("r", keys)
    assert not book.pulls.pending("r")
    assert book.meter.misses == {MissReason.TIMED_OUT: 1}
    assert "nothing within 0 s" in book.meter.details[0]


def test_a_finished_request_cancels_its_pull(book: Book) -> None:
    book.start("r", make_keys("k", 4))
    pull = book.supervisor.next_pull()
    book.pulls.finished("r")
    record = book.supervisor.pulls.pop()
    assert record is not None
    assert msgspec.msgpack.decode(record, type=ToControl) == CancelPull(pull.pull)
    book.supervisor.say(PullFailed(pull.pull, MissReason.ABORTED, "cancelled", False))
    book.pulls.drain()
    assert book.meter.misses == {MissReason.ABORTED: 1}
    assert book.ledger.counts()["free"] == BLOCKS


def test_forty_requests_share_a_quarter_of_the_tier_in_order(book: Book) -> None:
    """None evicts what another has pulled and not used; each gets its turn."""
    prompts = [make_keys(f"prompt {i}", 8) for i in range(40)]
    for i, keys in enumerate(prompts):
        book.start(f"r{i}", keys)
    for i, keys in enumerate(prompts):
        assert book.pulls.pending(f"r{i}")
        pull = book.supervisor.next_pull()
        assert pull.request == f"r{i}"
        book.supervisor.say_pulled(pull, 8)
        book.pulls.drain()
        assert book.ledger.counts()["landing"] + book.ledger.counts()["engine_pins"] <= BLOCKS // 4
        assert book.hits(keys) == 8
        book.pulls.looked_up(f"r{i}")
        book.pulls.start_waiting()
    assert not book.meter.misses


def test_without_helpers_a_pull_is_a_miss_at_once(book: Book) -> None:
    book.supervisor.link = None
    book.start("r", make_keys("k", 4))
    assert not book.pulls.pending("r")
    assert book.meter.misses == {MissReason.HELPERS_DOWN: 1}
    assert book.ledger.counts()["free"] == BLOCKS


def test_a_full_ring_is_a_miss(book: Book) -> None:
    assert book.supervisor.link is not None
    for size in (4000, 40):
        while book.supervisor.link.to_control.push(bytes(size)):
            pass
    book.start("r", make_keys("k", 14))
    assert not book.pulls.pending("r")
    assert book.meter.misses == {MissReason.QUEUE_FULL: 1}
    assert book.ledger.counts()["free"] == BLOCKS


def test_an_impossible_ring_ends_its_generation(book: Book) -> None:
    """Whoever wrote it cannot be trusted with anything else either."""
    keys = make_keys("k", 4)
    book.start("r", keys)
    book.supervisor.overwrite_answers()
    book.pulls.drain()
    assert book.supervisor.distrusted == [1]
    book.supervisor.next_generation()
    book.pulls.drain()
    assert book.meter.misses == {MissReason.HELPERS_DOWN: 1}
    assert book.ledger.counts()["free"] == BLOCKS
