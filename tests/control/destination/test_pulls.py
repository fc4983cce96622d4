"""Pulls between two real control planes; the initiator is played by the test."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from mpkv.control.destination.quarantine import RECYCLE_SOON_S
from mpkv.messages import CancelPull, KeyGroup, MissReason, Pulled, PullFailed
from tests.control.common import CONTENT, keys, u32, wait_for
from tests.control.harness import Plane

OTHER_CONTENT = b"other weights..."

Pair = tuple[Plane, Plane]


def failure(plane: Plane, pull: int) -> PullFailed:
    answer = plane.answer(pull)
    assert isinstance(answer, PullFailed)
    return answer


def test_the_held_prefix_arrives_in_the_slots_of_the_pull(pair: Pair) -> None:
    source, destination = pair
    wanted = keys("a", 10)
    source.store(wanted[:7])
    pull = destination.pull(source.address, wanted)
    answer = destination.answer(pull)
    assert isinstance(answer, Pulled)
    assert u32(answer.indexes) == list(range(7))
    assert answer.slots == destination.slots(pull)[: 7 * 8]
    assert answer.granted <= answer.read <= answer.confirmed
    read = destination.wait_read()
    assert u32(read.remote) == [source.ledger.find(key) for key in wanted[:7]]
    assert read.instance == source.instance
    assert source.pins() == 0
    assert source.count("leases_confirmed") == 1


def test_windowed_groups_arrive_with_indexes_through_all_groups(pair: Pair) -> None:
    source, destination = pair
    attention, sliding = keys("f", 6, 0), keys("w", 6, 1)
    source.store(attention[:5] + sliding[2:5])
    groups = (
        KeyGroup(b"".join(attention), 16, 0),
        KeyGroup(b"".join(sliding), 16, 2),
    )
    answer = destination.answer(destination.pull(source.address, groups, slots=8))
    assert isinstance(answer, Pulled)
    assert u32(answer.indexes) == [0, 1, 2, 3, 4, 9, 10]


def test_what_is_not_held_is_denied_at_once(pair: Pair) -> None:
    source, destination = pair
    # A deadline that nobody waits for: the answer itself must come.
    pull = destination.pull(source.address, keys("a", 5), deadline_s=10.0)
    answer = failure(destination, pull)
    assert answer.reason is MissReason.NOT_HELD
    assert not answer.slots_held
    assert f"source ({source.address})" in answer.detail
    assert source.count("grants_empty") == 1
    assert source.pins() == 0


def test_fewer_slots_than_keys_get_fewer_blocks(pair: Pair) -> None:
    source, destination = pair
    wanted = keys("a", 10)
    source.store(wanted)
    answer = destination.answer(destination.pull(source.address, wanted, slots=4))
    assert isinstance(answer, Pulled)
    assert u32(answer.indexes) == [0, 1, 2, 3]


def test_more_pulls_at_once_than_a_source_grants_leases_all_end_well(
    start: Callable[..., Plane],
) -> None:
    source, destination = start("source", blocks=4096), start("destination", blocks=4096)
    source.wait_ready()
    destination.wait_ready()
    wanted = keys("a", 1000)
    source.store(wanted)
    pulls = [destination.pull(source.address, [key]) for key in wanted]
    assert all(isinstance(destination.answer(pull), Pulled) for pull in pulls)
    assert source.count("denied_quota") == 0


def test_overlapping_pulls_end_out_of_order_each_with_its_own(pair: Pair) -> None:
    source, destination = pair
    destination.manual()
    one, two, three = (keys(name, count) for name, count in (("a", 3), ("b", 4), ("c", 5)))
    source.store(one + two + three)
    pulls = [destination.pull(source.address, wanted) for wanted in (one, two, three)]
    reads = [destination.wait_read(number) for number in (1, 2, 3)]
    for at in (2, 0, 1):
        destination.finish(reads[at])
        answer = destination.answer(pulls[at])
        assert isinstance(answer, Pulled)
        assert answer.slots == destination.slots(pulls[at])
        assert u32(answer.indexes) == list(range(3 + at))
    assert source.pins() == 0


def test_a_hundred_cancelled_pulls_leave_nothing(pair: Pair) -> None:
    source, destination = pair
    destination.manual()
    wanted = keys("a", 4)
    source.store(wanted)
    assert destination.initiator is not None
    for number in range(1, 101):
        pull = destination.pull(source.address, wanted)
        if number % 3 == 0:
            destination.wait_read(len(destination.initiator.reads) + 1)
        destination.push(CancelPull(pull))
        answer = failure(destination, pull)
        assert answer.reason is MissReason.ABORTED
        if answer.slots_held:
            destination.finish_reads()
            destination.wait_slots(pull)
    wait_for(lambda: source.pins() == 0, "the pins to go")
    assert destination.ledger.counts()["landing"] == 0
    assert destination.count("missed_aborted") == 100
    # A cancel of what is over changes nothing.
    destination.push(CancelPull(100))
    destination.automatic()
    assert destination.fetch(source.address, wanted) == [0, 1, 2, 3]


def test_a_late_read_of_a_timed_out_pull_only_returns_slots(pair: Pair) -> None:
    source, destination = pair
    destination.manual()
    wanted = keys("a", 4)
    source.store(wanted)
    pull = destination.pull(source.address, wanted, deadline_s=0.3)
    read = destination.wait_read()
    answer = failure(destination, pull)
    assert answer.reason is MissReason.TIMED_OUT
    assert answer.slots_held
    assert source.address in answer.detail
    # The peer gets no new pulls while its READ is not over.
    blocked = failure(destination, destination.pull(source.address, wanted))
    assert blocked.reason is MissReason.TRANSFER_FAILED
    destination.finish(read)
    destination.wait_slots(pull)
    assert destination.answers(pull) == [answer]
    assert source.count("leases_confirmed") == 0
    wait_for(lambda: source.pins() == 0, "the lease to be released")
    destination.automatic()
    assert destination.fetch(source.address, wanted) == [0, 1, 2, 3]


def test_a_read_that_never_ends_costs_the_initiator(pair: Pair) -> None:
    source, destination = pair
    old = destination.manual()
    wanted = keys("a", 4)
    source.store(wanted)
    pull = destination.pull(source.address, wanted, deadline_s=0.5)
    destination.wait_read()
    assert failure(destination, pull).slots_held
    wait_for(lambda: not old.process.alive(), "the initiator to be ended")
    # Killed is not reaped: only the supervisor's next initiator says that.
    assert not destination.took_back(pull)
    destination.new_initiator()
    destination.wait_slots(pull)
    assert destination.fetch(source.address, wanted) == [0, 1, 2, 3]
    assert destination.count("initiators_recycled") == 1


def test_too_many_unfinished_blocks_cost_the_initiator_at_once(
    start: Callable[..., Plane],
) -> None:
    source, destination = start("source", blocks=256), start("destination", blocks=64)
    source.wait_ready()
    destination.wait_ready()
    old = destination.manual()
    wanted = keys("a", 20)
    source.store(wanted)
    pull = destination.pull(source.address, wanted, deadline_s=0.5)
    destination.wait_read()
    assert failure(destination, pull).slots_held
    wait_for(lambda: not old.process.alive(), "the initiator to be ended", 1.5)


def test_a_failed_read_keeps_its_slots_until_the_initiator_is_gone(pair: Pair) -> None:
    source, destination = pair
    old = destination.manual()
    wanted = keys("a", 4)
    source.store(wanted)
    pull = destination.pull(source.address, wanted)
    old.failed(destination.wait_read(1), posted=True)
    answer = failure(destination, pull)
    assert answer.reason is MissReason.TRANSFER_FAILED
    assert answer.slots_held
    assert "NIXL_ERR_BACKEND" in answer.detail
    # Nothing else is being read, so it is ended at once.
    wait_for(lambda: not old.process.alive(), "the initiator to be ended", 1.0)
    assert not destination.took_back(pull)
    # A pull that comes now waits for the next one.
    other = destination.pull(source.address, wanted)
    destination.new_initiator()
    destination.wait_slots(pull)
    assert isinstance(destination.answer(other), Pulled)


def test_a_failed_read_does_not_cost_others_their_pulls(
    pair: Pair, start: Callable[..., Plane]
) -> None:
    source, destination = pair
    healthy = start("healthy")
    healthy.wait_ready()
    old = destination.manual()
    wanted = keys("a", 4)
    source.store(wanted)
    healthy.store(wanted)
    good = destination.pull(healthy.address, wanted)
    going_on = destination.wait_read(1)
    bad = destination.pull(source.address, wanted)
    old.failed(destination.wait_read(2), posted=True)
    assert failure(destination, bad).slots_held
    # Its peer is suspect, whatever it is called; the other is served meanwhile.
    alias = source.address.replace("127.0.0.1", "localhost")
    suspect = failure(destination, destination.pull(alias, wanted))
    assert suspect.reason is MissReason.TRANSFER_FAILED
    second = destination.pull(healthy.address, wanted)
    destination.finish(destination.wait_read(3))
    assert isinstance(destination.answer(second), Pulled)
    assert old.process.alive()
    # After a while nothing more is begun, so that the end comes soon.
    until = time.monotonic() + RECYCLE_SOON_S
    wait_for(lambda: time.monotonic() > until, "that while")
    third = destination.pull(healthy.address, wanted)
    wait_for(lambda: healthy.count("grants") == 3, "its grant")
    destination.finish(going_on)
    assert isinstance(destination.answer(good), Pulled)
    wait_for(lambda: not old.process.alive(), "the initiator to be ended", 1.0)
    destination.new_initiator()
    assert isinstance(destination.answer(third), Pulled)
    destination.wait_slots(bad)


def test_a_deadline_beyond_the_longest_lease_is_cut_and_said(
    start: Callable[..., Plane],
) -> None:
    plane = start("plane", deadline_s=300.0)
    plane.wait_ready()
    assert "pulls end after 59 s" in plane.log()


def test_a_read_that_was_never_posted_frees_its_slots_at_once(pair: Pair) -> None:
    source, destination = pair
    initiator = destination.manual()
    wanted = keys("a", 4)
    source.store(wanted)
    pull = destination.pull(source.address, wanted)
    initiator.failed(destination.wait_read(), posted=False)
    answer = failure(destination, pull)
    assert answer.reason is MissReason.TRANSFER_FAILED
    assert not answer.slots_held
    wait_for(lambda: source.pins() == 0, "the lease to be released")


def test_an_initiator_that_dies_in_the_read_returns_slots_when_reaped(pair: Pair) -> None:
    source, destination = pair
    old = destination.manual()
    wanted = keys("a", 4)
    source.store(wanted)
    pull = destination.pull(source.address, wanted)
    destination.wait_read()
    old.process.end()
    answer = failure(destination, pull)
    assert answer.reason is MissReason.HELPERS_DOWN
    assert answer.slots_held
    assert not destination.took_back(pull)
    destination.new_initiator()
    destination.wait_slots(pull)
    assert destination.fetch(source.address, wanted) == [0, 1, 2, 3]


def test_a_source_without_its_target_does_not_confirm(pair: Pair) -> None:
    source, destination = pair
    destination.manual()
    wanted = keys("a", 4)
    source.store(wanted)
    pull = destination.pull(source.address, wanted)
    read = destination.wait_read()
    source.target_process.end()
    destination.finish(read)
    answer = failure(destination, pull)
    assert answer.reason is MissReason.LEASE_LOST
    assert "target_down" in answer.detail
    assert source.count("unconfirmed_target_down") == 1
    # Nor does it grant.
    refused = failure(destination, destination.pull(source.address, wanted))
    assert refused.reason is MissReason.PEER_DOWN


def test_a_source_with_other_content_does_not_confirm(pair: Pair) -> None:
    source, destination = pair
    destination.manual()
    wanted = keys("a", 4)
    source.store(wanted)
    pull = destination.pull(source.address, wanted)
    read = destination.wait_read()
    source.ledger.set_content(OTHER_CONTENT)
    destination.finish(read)
    answer = failure(destination, pull)
    assert answer.reason is MissReason.LEASE_LOST
    assert "content" in answer.detail
    differs = failure(destination, destination.pull(source.address, wanted))
    assert differs.reason is MissReason.CONTENT
    assert f"its content is {OTHER_CONTENT[:6].hex()}, here {CONTENT[:6].hex()}" in differs.detail
    # The source says it as well, once.
    failure(destination, destination.pull(source.address, wanted))
    said = f"its content is {CONTENT[:6].hex()}, ours {OTHER_CONTENT[:6].hex()}"
    assert source.log().count(said) == 1
    # Nor while one of them does not know.
    source.ledger.set_content(b"")
    unknown = failure(destination, destination.pull(source.address, wanted))
    assert unknown.reason is MissReason.CONTENT
    assert "its content is not known yet" in unknown.detail
    source.ledger.set_content(OTHER_CONTENT)
    destination.ledger.set_content(OTHER_CONTENT)
    destination.automatic()
    assert destination.fetch(source.address, wanted) == [0, 1, 2, 3]


def test_one_key_seventy_thousand_times(start: Callable[..., Plane]) -> None:
    source, destination = start("source"), start("destination")
    source.wait_ready()
    destination.wait_ready()
    (key,) = keys("a", 1)
    source.store([key])
    answer = destination.answer(
        destination.pull(source.address, [key] * 70_000, slots=100), limit_s=10.0
    )
    assert isinstance(answer, Pulled)
    # A repeated key is granted once.
    assert u32(answer.indexes) == [0]
    assert u32(destination.wait_read().remote) == [source.ledger.find(key)]
    assert source.pins() == 0
    assert destination.fetch(source.address, [key]) == [0]


def test_pulls_that_cannot_begin_say_why(pair: Pair) -> None:
    source, destination = pair
    wanted = keys("a", 2)
    source.store(wanted)
    reasons = {
        MissReason.TIMED_OUT: destination.pull(source.address, wanted, deadline_s=-1.0),
        MissReason.NO_SPACE: destination.pull(source.address, wanted, slots=0),
        MissReason.NOT_HELD: destination.pull(source.address, [], slots=1),
        MissReason.REFUSED: destination.pull("no port here", wanted),
        MissReason.CACHE_RESET: destination.pull(source.address, wanted, epoch=1),
        MissReason.CONTENT: destination.pull(source.address, wanted, content=OTHER_CONTENT),
    }
    for reason, pull in reasons.items():
        assert failure(destination, pull).reason is reason
    assert destination.fetch(source.address, wanted) == [0, 1]


def test_open_pulls_are_bounded_and_all_answered(start: Callable[..., Plane]) -> None:
    source = start("source", blocks=256)
    destination = start("destination", blocks=2048)
    source.wait_ready()
    destination.wait_ready()
    destination.manual()
    (wanted,) = keys("a", 1)
    source.store([wanted])
    pulls = [destination.pull(source.address, [wanted]) for _ in range(1100)]
    ended = {pull: destination.answer(pull) for pull in pulls[1024:]}
    assert {a.reason for a in ended.values() if isinstance(a, PullFailed)} == {
        MissReason.QUEUE_FULL
    }
    destination.automatic()
    destination.finish_reads()
    for pull in pulls:
        destination.answer(pull)
    assert destination.ledger.counts()["landing"] == 0
    wait_for(lambda: source.pins() == 0, "the pins to go")


def test_every_step_of_a_pull_is_traced(start: Callable[..., Plane], tmp_path: Path) -> None:
    source, destination = (start(node, trace_dir=str(tmp_path)) for node in ("s", "d"))
    source.wait_ready()
    destination.wait_ready()
    source.store(keys("a", 3))
    assert destination.fetch(source.address, keys("a", 4)) == [0, 1, 2]
    assert destination.fetch(source.address, keys("b", 1)) == []

    def events(node: str) -> list[tuple[object, ...]]:
        (file,) = tmp_path.glob(f"{node}-control-*.jsonl")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert [line["at"] for line in lines] == sorted(line["at"] for line in lines)
        return [(x["event"], x.get("request"), x.get("blocks")) for x in lines]

    assert events("s") == [("grant", None, 3)]
    assert events("d") == [
        ("pull_start", "request-1", None),
        ("grant_received", "request-1", 3),
        ("read_posted", "request-1", 3),
        ("read_done", "request-1", 3),
        ("confirmed", "request-1", 3),
        ("pull_start", "request-2", None),
        ("pull_failed", "request-2", None),
    ]
