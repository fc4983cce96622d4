"""Checksums on the wire: what each side makes of the other's, in time or not."""

import array
from collections.abc import Callable, Iterator

import pytest

from mpkv.cluster.settings import Integrity
from mpkv.control.checksums import checksum
from mpkv.control.network.wire import Ask, Confirm, Confirmed, Grant, Hello, Welcome, pack_runs
from mpkv.control.source import promises
from mpkv.messages import MissReason, Pulled, PullFailed
from tests.control.common import BLOCK_BYTES, CONTENT, keys, wait_for
from tests.control.destination.test_pull_model import CHECKED, KEYS
from tests.control.destination.world import World
from tests.control.harness import Plane
from tests.control.raw import RawSource

WANTED = keys("a", 4)
EMPTY = checksum(bytes(BLOCK_BYTES))
Start = Callable[..., Plane]


def packed(*checksums: int) -> bytes:
    return array.array("Q", checksums).tobytes()


# --- what the destination makes of them ------------------------------------------------


def until_confirm(plane: Plane, raw: RawSource, integrity: Integrity) -> tuple[int, bytes, Confirm]:
    """Pull from a source played by hand, up to the Confirm."""
    pull = plane.pull(raw.address, WANTED)
    route, _ = raw.receive(Hello)
    raw.send(route, Welcome("s", "raw", "s.target", b"md", 0, 64, BLOCK_BYTES, CONTENT))
    _, asked = raw.receive(Ask)
    assert isinstance(asked, Ask)
    assert asked.integrity is integrity
    raw.send(route, Grant(asked.ask, 1, pack_runs([(0, 4)]), bytes(16), CONTENT))
    plane.wait_read()
    _, confirm = raw.receive(Confirm)
    assert isinstance(confirm, Confirm)
    return pull, route, confirm


@pytest.mark.parametrize(
    ("integrity", "sent", "reason"),
    [
        (Integrity.FULL, packed(EMPTY, EMPTY, EMPTY, EMPTY), None),
        (Integrity.FULL, packed(EMPTY, EMPTY, EMPTY ^ 1, EMPTY), MissReason.CORRUPTED),
        (Integrity.FULL, b"", MissReason.TRANSFER_FAILED),
        (Integrity.FULL, packed(EMPTY, EMPTY, EMPTY), MissReason.TRANSFER_FAILED),
        (Integrity.FULL, packed(EMPTY, EMPTY, EMPTY, EMPTY, EMPTY), MissReason.TRANSFER_FAILED),
        (Integrity.FULL, packed(EMPTY, EMPTY, EMPTY, EMPTY)[:-1], MissReason.TRANSFER_FAILED),
        (Integrity.SAMPLED, packed(EMPTY), None),
        (Integrity.SAMPLED, packed(0), MissReason.CORRUPTED),
        (Integrity.SAMPLED, packed(EMPTY, EMPTY, EMPTY, EMPTY), MissReason.TRANSFER_FAILED),
        (Integrity.OFF, b"", None),
        (Integrity.OFF, packed(EMPTY), MissReason.TRANSFER_FAILED),
    ],
)
def test_what_a_source_sends_decides(
    start: Start,
    raw_source: Callable[[], RawSource],
    integrity: Integrity,
    sent: bytes,
    reason: MissReason | None,
) -> None:
    plane, raw = start("plane", integrity=integrity), raw_source()
    plane.wait_ready()
    pull, route, confirm = until_confirm(plane, raw, integrity)
    raw.send(route, Confirmed(confirm.ask, confirm.lease, sent))
    answer = plane.answer(pull)
    if reason is None:
        assert isinstance(answer, Pulled)
    else:
        assert isinstance(answer, PullFailed)
        assert (answer.reason, answer.slots_held) == (reason, False)
        assert raw.address in answer.detail
    assert plane.process.poll() is None
    assert not plane.count("dropped_by_fault")


def test_what_changed_on_the_way_is_found(start: Start) -> None:
    source, destination = start("source"), start("destination", integrity=Integrity.FULL)
    source.wait_ready()
    destination.wait_ready()
    destination.manual()
    source.store(WANTED)
    pull = destination.pull(source.address, WANTED)
    read = destination.wait_read()
    destination.write(destination.slots(pull)[8:16], b"\1")
    destination.finish(read)
    answer = destination.answer(pull)
    assert isinstance(answer, PullFailed)
    assert answer.reason is MissReason.CORRUPTED
    assert f"1 of 4 blocks from source ({source.address})" in answer.detail
    assert WANTED[1].hex()[:16] in answer.detail
    assert not answer.slots_held
    assert destination.count("missed_corrupted") == destination.count("blocks_corrupted") == 1
    assert "a pull brought wrong bytes" in destination.log()
    wait_for(lambda: source.pins() == 0, "the pins of the pull")


# --- what the source does until they are ready -----------------------------------------


@pytest.fixture
def world() -> Iterator[World]:
    """A pull whose Confirm has arrived while nothing is hashed yet."""
    world = World(integrity=Integrity.FULL)
    world.store(KEYS)
    for _, step in CHECKED[:9]:
        assert step(world) is not False
    assert not world.to_destination
    yield world
    world.close()


def reason(world: World, pull: int = 1) -> MissReason | None:
    return world.pulls[pull].reason


def test_a_confirm_waits_for_the_checksums(world: World) -> None:
    assert world.source_ledger.counts()["control_pins"] > 0
    world.source_hashes()
    assert world.source_ledger.counts()["control_pins"] == 0
    world.run()
    assert world.pulls[1].state == "pulled"


def test_a_confirm_waits_no_longer_than_its_lease(world: World) -> None:
    world.expire_leases()
    assert world.source_ledger.counts()["control_pins"] == 0
    world.deliver_to_destination()
    assert reason(world) is MissReason.LEASE_LOST
    counted = world.source_view.counters("control").read()
    assert counted["unconfirmed_expired"] == 1
    # The thread learns that nobody waits; what it makes of the job is nobody's.
    world.run()
    assert counted["leases_confirmed"] == 0


def test_a_pull_that_is_given_up_meanwhile_gives_its_lease_back(world: World) -> None:
    world.cancel(1)
    world.deliver_to_source()
    assert world.source_ledger.counts()["control_pins"] == 0
    assert not world.to_destination
    world.run()
    assert reason(world) is MissReason.ABORTED
    assert world.source_view.counters("control").read()["leases_confirmed"] == 0


def test_what_cannot_be_hashed_is_not_confirmed(world: World) -> None:
    slots = world.source_view.ready_besides(bytes(4 * world.source_view.blocks))
    world.source_ledger.free(slots[:8])
    world.source_hashes()
    world.deliver_to_destination()
    assert reason(world) is MissReason.LEASE_LOST
    assert world.source_view.counters("control").read()["unconfirmed_unchecked"] == 1


def test_the_answer_goes_where_the_peer_is_now(world: World) -> None:
    world.drop_connection()
    for _ in range(3):
        world.deliver_to_source()
        world.deliver_to_destination()
    world.source_hashes()
    world.run()
    assert world.pulls[1].state == "pulled"


def test_how_much_waits_to_be_hashed_is_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.settle()
    monkeypatch.setattr(promises, "MAX_JOBS", 2)
    pulls = [world.pull(KEYS[:1]) for _ in range(3)]
    while world.deliver_to_source():
        pass
    counted = world.source_view.counters("control").read()
    assert (counted["grants"], counted["denied_quota"]) == (3, 1)
    # The third waits for its turn, as it does for any other quota.
    world.settle()
    assert [world.pulls[pull].state for pull in pulls if pull] == ["pulled"] * 3


def test_a_reset_while_blocks_are_checked_is_a_miss(world: World) -> None:
    world.source_hashes()
    world.deliver_to_destination()
    world.reset_cache()
    world.landed_is_hashed()
    assert reason(world) is MissReason.CACHE_RESET


def test_the_deadline_holds_while_blocks_are_checked(world: World) -> None:
    world.source_hashes()
    world.deliver_to_destination()
    world.pass_time(10.0)
    assert reason(world) is MissReason.TIMED_OUT
    # The end of the hashing changes nothing any more.
    world.landed_is_hashed()
    world.settle()
    assert world.pulls[1].state == "failed"
