"""Pulls that vLLM's input thread begins, with that thread played by the test."""

import threading
import time

import msgspec
import pytest

from mpkv.engine.pull_book import PullBook
from mpkv.memory import LANDING
from mpkv.messages import CancelPull, KeyGroup, MissReason, Pull, PullFailed, ToControl
from tests.engine.book import BLOCKS, Book
from tests.support.standin import StandIn, make_keys

STOCK = BLOCKS // 8


def begin(pulls: PullBook, request: str, keys: list[bytes], present: bytes = b"") -> bool:
    groups = (KeyGroup(b"".join(keys), 16, 0),)
    begun: list[bool] = []
    thread = threading.Thread(
        target=lambda: begun.append(pulls.begin(request, "peer:1", groups, present))
    )
    thread.start()
    thread.join(timeout=10)
    return begun[0]


def stocked(deadline_s: float = 60.0) -> Book:
    book = Book(deadline_s, head_start=0.125)
    book.pulls.start_waiting()
    assert book.ledger.counts()["landing"] == STOCK
    return book


def held(book: Book) -> tuple[int, int]:
    counts = book.ledger.counts()
    return counts["landing"], counts["engine_pins"]


def test_what_came_before_the_request_is_a_hit_at_its_first_look() -> None:
    book = stocked()
    keys = make_keys("k", 5)
    assert begin(book.pulls, "r", keys)
    book.supervisor.say_pulled(book.supervisor.next_pull(early=True), 5)
    assert book.pulls.claim("r")
    book.pulls.drain()
    assert not book.pulls.pending("r")
    assert book.hits(keys) == 5
    assert held(book) == (STOCK - 5, 5)
    book.pulls.looked_up("r")
    book.pulls.start_waiting()
    assert held(book) == (STOCK, 0)
    assert book.meter.blocks == 5


def test_what_is_still_on_its_way_is_waited_for() -> None:
    book = stocked()
    keys = make_keys("k", 5)
    assert begin(book.pulls, "r", keys)
    assert book.pulls.claim("r")
    book.pulls.drain()
    assert book.pulls.pending("r")
    book.supervisor.say_pulled(book.supervisor.next_pull(early=True), 3)
    book.pulls.drain()
    assert not book.pulls.pending("r")
    assert book.hits(keys) == 3


def test_a_request_that_did_not_begin_early_begins_as_ever() -> None:
    book = stocked()
    assert not book.pulls.claim("r")
    assert not begin(book.pulls, "r", make_keys("k", STOCK + 1))
    assert not book.pulls.claim("r")
    book.start("r", make_keys("k", STOCK + 1))
    assert book.supervisor.next_pull().request == "r"
    assert held(book) == (STOCK + STOCK + 1, 0)


def test_without_a_head_start_nothing_begins_early() -> None:
    book = Book()
    book.pulls.start_waiting()
    assert not begin(book.pulls, "r", make_keys("k", 1))
    assert held(book) == (0, 0)


def test_the_prefix_that_it_follows_is_kept() -> None:
    book = stocked()
    here, more = make_keys("k", 8)[:4], make_keys("k", 8)[4:]
    slots, _ = book.ledger.allocate(4, LANDING) or (b"", b"")
    book.ledger.publish(slots, b"".join(here), False)
    assert begin(book.pulls, "r", more, present=b"".join(here))
    book.pulls.drain()
    assert held(book) == (STOCK, 4)
    book.supervisor.say_pulled(book.supervisor.next_pull(early=True), 4)
    book.pulls.drain()
    assert held(book) == (STOCK - 4, 8)
    book.pulls.claim("r")
    book.pulls.finished("r")
    assert held(book) == (STOCK - 4, 0)


def test_a_failure_leaves_nothing_and_its_slots_come_back() -> None:
    book = stocked()
    begin(book.pulls, "r", make_keys("k", 5))
    pull = book.supervisor.next_pull(early=True)
    book.supervisor.say(PullFailed(pull.pull, MissReason.NOT_HELD, "", False))
    assert not book.pulls.claim("r")
    book.pulls.drain()
    assert not book.pulls.pending("r")
    assert not book.meter.misses, "its request may still hit"
    book.pulls.start_waiting()
    assert held(book) == (STOCK, 0)


@pytest.mark.parametrize("drained", [False, True])
def test_helpers_that_die_take_it_with_them(drained: bool) -> None:
    book = stocked()
    begin(book.pulls, "r", make_keys("k", 5))
    if drained:
        book.pulls.drain()
    book.supervisor.next_generation()
    book.pulls.drain()
    assert not book.pulls.claim("r")
    assert not book.pulls.pending("r")
    assert not book.meter.misses, "its request may still hit"
    book.pulls.start_waiting()
    assert held(book) == (STOCK, 0)


def test_one_that_was_sent_to_helpers_already_reaped_ends_too() -> None:
    book = stocked()
    old = book.supervisor.link
    book.supervisor.next_generation()
    book.pulls.drain()
    # The input thread had looked before.
    book.supervisor.link, new = old, book.supervisor.link
    begin(book.pulls, "r", make_keys("k", 5))
    book.supervisor.link = new
    assert not book.pulls.claim("r")
    assert not book.pulls.pending("r")
    assert not book.meter.misses, "its request may still hit"
    book.pulls.start_waiting()
    assert held(book) == (STOCK, 0)


def test_a_full_ring_leaves_nothing() -> None:
    book = stocked()
    link = book.supervisor.link
    assert link is not None
    while link.to_control_early.push(bytes(link.max_record)):
        pass
    while link.to_control_early.push(bytes(8)):
        pass
    assert begin(book.pulls, "r", make_keys("k", 5))
    assert not book.pulls.claim("r")
    assert not book.pulls.pending("r")
    assert not book.meter.misses, "its request may still hit"
    book.pulls.start_waiting()
    assert held(book) == (STOCK, 0)


def test_another_pull_begins_where_the_early_one_brought_nothing() -> None:
    book = stocked()
    keys = make_keys("k", 5)
    begin(book.pulls, "r", keys)
    pull = book.supervisor.next_pull(early=True)
    book.supervisor.say(PullFailed(pull.pull, MissReason.NOT_HELD, "", False))
    assert not book.pulls.claim("r")
    book.start("r", keys)
    assert book.pulls.pending("r")
    book.supervisor.say_pulled(book.supervisor.next_pull(), 5)
    book.pulls.drain()
    assert book.hits(keys) == 5
    assert not book.meter.misses
    assert book.meter.lookups == 1
    book.pulls.finished("r")
    assert held(book) == (STOCK, 0)
    assert book.pulls.claims.taken == 0


def test_what_has_come_counts_however_late_its_request_is_heard_of() -> None:
    book = stocked(deadline_s=0.05)
    keys = make_keys("k", 5)
    begin(book.pulls, "r", keys)
    book.supervisor.say_pulled(book.supervisor.next_pull(early=True), 5)
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        pass
    assert book.pulls.claim("r")
    assert not book.pulls.pending("r")
    assert book.hits(keys) == 5
    assert not book.meter.misses


def test_one_id_has_one_pull() -> None:
    book = stocked()
    first, second = make_keys("a", 3), make_keys("b", 3)
    assert begin(book.pulls, "r", first)
    assert not begin(book.pulls, "r", second)
    assert book.pulls.claim("r")
    assert not begin(book.pulls, "r", second)
    book.supervisor.say_pulled(book.supervisor.next_pull(early=True), 3)
    book.pulls.drain()
    book.pulls.finished("r")
    book.pulls.start_waiting()
    assert held(book) == (STOCK, 0)
    assert book.pulls.claims.taken == 0


def test_the_stock_is_there_from_the_start() -> None:
    book = Book(head_start=0.125)
    assert begin(book.pulls, "r", make_keys("k", STOCK))


@pytest.mark.parametrize("answered", [False, True])
def test_a_request_that_never_comes_holds_nothing_for_long(
    answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpkv.engine.early.LATE_S", 0.0)
    book = stocked(deadline_s=0.2)
    begin(book.pulls, "r", make_keys("k", 5))
    pull = book.supervisor.next_pull(early=True)
    if answered:
        book.supervisor.say_pulled(pull, 5)
    book.pulls.drain()
    assert held(book) == ((STOCK - 5, 5) if answered else (STOCK, 0))
    until = time.monotonic() + 10
    while not book.pulls.idle() or held(book)[1]:
        assert time.monotonic() < until
        book.pulls.drain()
        record = book.supervisor.pulls.pop()
        if record is not None:
            assert msgspec.msgpack.decode(record, type=ToControl) == CancelPull(pull.pull)
            book.supervisor.say(PullFailed(pull.pull, MissReason.ABORTED, "", False))
        time.sleep(0.01)
    book.pulls.start_waiting()
    assert held(book) == (STOCK, 0)
    assert not book.pulls.claim("r")


def test_without_helpers_too_a_request_that_never_comes_lets_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mpkv.engine.early.LATE_S", 0.0)
    book = stocked(deadline_s=0.05)
    begin(book.pulls, "r", make_keys("k", 5))
    book.supervisor.say_pulled(book.supervisor.next_pull(early=True), 5)
    book.pulls.drain()
    book.supervisor.link = None
    until = time.monotonic() + 10
    while held(book)[1]:
        assert time.monotonic() < until, "its pins stay"
        book.pulls.drain()


def test_a_reset_in_between_leaves_nothing() -> None:
    book = stocked()
    keys = make_keys("k", 5)
    begin(book.pulls, "r", keys)
    book.ledger.set_epoch(book.ledger.epoch + 1)
    book.pulls.cache_reset()
    book.supervisor.say_pulled(book.supervisor.next_pull(early=True), 5)
    assert not book.pulls.claim("r")
    book.pulls.drain()
    assert not book.pulls.pending("r")
    assert book.hits(keys) == 0
    assert not book.meter.misses, "its request may still hit"
    book.pulls.start_waiting()
    assert held(book) == (STOCK, 0)


def test_the_stock_waits_until_other_pulls_have_their_room() -> None:
    book = stocked()
    most = BLOCKS // 4
    book.start("large", make_keys("a", most))
    begin(book.pulls, "r", make_keys("k", STOCK))
    book.pulls.drain()
    book.start("waits", make_keys("b", 1))
    # All that may be claimed is, and the stock on top.
    assert held(book) == (most + STOCK, 0)
    pull = book.supervisor.next_pull(early=True)
    book.supervisor.say(PullFailed(pull.pull, MissReason.NOT_HELD, "", False))
    book.pulls.drain()
    book.pulls.start_waiting()
    assert held(book) == (most, 0)
    pull = book.supervisor.next_pull()
    book.supervisor.say(PullFailed(pull.pull, MissReason.NOT_HELD, "", False))
    book.pulls.drain()
    book.pulls.start_waiting()
    assert book.supervisor.next_pull().request == "waits"
    assert held(book) == (STOCK + 1, 0)


def early_pulls(book: Book) -> list[Pull]:
    found = []
    while (record := book.supervisor.early.pop()) is not None:
        found.append(msgspec.msgpack.decode(record, type=Pull))
    return found


@pytest.mark.parametrize("drained", [False, True])
def test_sixteen_that_begin_at_once_ask_once(drained: bool) -> None:
    book = Book(head_start=0.125, blocks=2048)
    keys = make_keys("k", 256)
    requests = [f"r{number}" for number in range(16)]
    for request in requests:
        assert begin(book.pulls, request, keys)
        if drained:
            book.pulls.drain()
    (pull,) = early_pulls(book)
    assert len(pull.slots) == 8 * 256
    assert all(book.pulls.claim(request) for request in requests)
    assert all(book.pulls.pending(request) for request in requests)
    book.supervisor.say_pulled(pull, 256)
    book.pulls.drain()
    book.pulls.start_waiting()
    assert not any(book.pulls.pending(request) for request in requests)
    assert book.supervisor.pulls.pop() is None
    assert book.hits(keys) == 256
    for request in requests:
        assert held(book)[1] == book.pulls.claims.taken == 256
        assert book.pulls.adopted(request, keys[0])
        book.pulls.looked_up(request)
        book.pulls.finished(request)
    assert held(book) == (256, 0)
    assert (book.meter.blocks, book.meter.lookups) == (256, 16)


def test_what_the_scheduler_has_asked_for_is_not_begun_again() -> None:
    book = stocked()
    keys = make_keys("k", 8)
    book.start("r0", keys[:6])
    pull = book.supervisor.next_pull()
    assert begin(book.pulls, "r1", keys)
    (rest,) = early_pulls(book)
    assert rest.groups[0].keys == b"".join(keys[6:])
    book.supervisor.say_pulled(rest, 2)
    assert book.pulls.claim("r1")
    assert book.pulls.pending("r1")
    book.supervisor.say_pulled(pull, 6)
    book.pulls.drain()
    assert not book.pulls.pending("r1")
    assert book.hits(keys) == 8
    assert held(book)[1] == 8


def test_others_may_join_and_leave_it_before_the_scheduler_has_entered_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    book = stocked()
    keys = make_keys("k", 8)
    with monkeypatch.context() as between:
        # The input thread goes on in the middle of `start`.
        between.setattr(book.pulls, "_take_early", lambda: begin(book.pulls, "r0", keys))
        book.start("r1", keys)
        assert book.pulls.pending("r1")
        book.pulls.finished("r1")
    (pull,) = early_pulls(book)
    assert book.supervisor.pulls.pop() is None
    assert book.pulls.claim("r0")
    book.supervisor.say_pulled(pull, 8)
    book.pulls.drain()
    assert not book.pulls.pending("r0")
    assert book.hits(keys) == 8


def test_what_has_begun_early_is_not_asked_for_by_the_scheduler() -> None:
    book = stocked()
    keys = make_keys("k", 8)
    assert begin(book.pulls, "r0", keys)
    (pull,) = early_pulls(book)
    book.start("r1", keys)
    assert book.supervisor.pulls.pop() is None
    book.supervisor.say_pulled(pull, 8)
    book.pulls.drain()
    assert not book.pulls.pending("r1")
    assert book.hits(keys) == 8


def test_one_that_began_for_what_was_coming_asks_when_it_has_not_come() -> None:
    book = stocked()
    keys = make_keys("k", 6)
    group = (KeyGroup(b"".join(keys), 16, 0),)
    book.pulls.start("r0", "other:1", group)
    pull = book.supervisor.next_pull()
    assert begin(book.pulls, "r1", keys)
    # Before the scheduler thread looks.
    book.supervisor.say(PullFailed(pull.pull, MissReason.PEER_DOWN, "", False))
    assert book.pulls.claim("r1")
    assert book.pulls.pending("r1")
    book.pulls.start_waiting()
    second = book.supervisor.next_pull()
    assert (second.request, second.peer) == ("r1", "peer:1")
    book.supervisor.say_pulled(second, 6)
    book.pulls.drain()
    assert not book.pulls.pending("r1")
    assert book.hits(keys) == 6


def test_what_came_before_the_scheduler_looked_is_not_asked_for() -> None:
    book = stocked()
    keys = make_keys("k", 6)
    book.start("r0", keys)
    pull = book.supervisor.next_pull()
    assert begin(book.pulls, "r1", keys)
    assert book.supervisor.early.pop() is None
    book.supervisor.say_pulled(pull, 6)
    assert book.pulls.claim("r1")
    assert not book.pulls.pending("r1")
    book.pulls.start_waiting()
    assert book.supervisor.pulls.pop() is None
    assert book.hits(keys) == 6


def test_both_threads_at_once_lose_nothing() -> None:
    """Real helpers; the input thread begins pulls as fast as the stock allows, meanwhile the
    scheduler's takes them in, and some requests never come."""
    requests = 600
    # A source hands out a quarter of its tier at a time.
    with (
        StandIn("source", blocks=1024) as source,
        StandIn("early", head_start=0.125, deadline_s=5.0) as engine,
    ):
        keys = make_keys("k", 64)
        source.store(keys)
        engine.pull_until(source, keys[:1])
        begun: dict[str, list[bytes]] = {}
        done = threading.Event()

        def receive() -> None:
            for number in range(requests):
                wanted = keys[number % 60 : number % 60 + 1 + number % 4]
                group = KeyGroup(b"".join(wanted), 16, 0)
                until = time.monotonic() + 5
                while not engine.pulls.begin(f"r{number}", source.address, (group,), b""):
                    if time.monotonic() > until:
                        return
                    time.sleep(0.0005)
                begun[f"r{number}"] = wanted
            done.set()

        thread = threading.Thread(target=receive)
        thread.start()
        open_requests: dict[str, list[bytes]] = {}
        seen = 0
        until = time.monotonic() + 60
        while thread.is_alive() or open_requests:
            assert time.monotonic() < until
            for request in list(begun)[seen:]:
                seen += 1
                if seen % 50:
                    assert engine.pulls.claim(request)
                    open_requests[request] = begun[request]
            engine.step()
            for request, wanted in list(open_requests.items()):
                if not engine.pulls.pending(request):
                    assert all(engine.holds(key) for key in wanted)
                    engine.pulls.looked_up(request)
                    engine.pulls.finished(request)
                    del open_requests[request]
        thread.join()
        assert done.is_set()
        assert not engine.meter.misses
        until = time.monotonic() + 20
        stock = engine.ledger.blocks // 8
        while True:
            engine.step()
            counts = engine.ledger.counts()
            if (counts["landing"], counts["engine_pins"]) == (stock, 0):
                break
            assert time.monotonic() < until, counts
            time.sleep(0.01)
