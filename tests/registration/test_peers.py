"""Peers that come, go, restart, hang and die, beside one that stays well."""

import signal
from collections.abc import Callable

import msgspec

from mpkv.messages import ReadDone, ReadFailed
from tests.registration.harness import Helper, Initiator, Target

StartTarget = Callable[..., Target]


def _die(target: Target) -> None:
    target.process.signal(signal.SIGKILL)
    target.exit_code(within_s=5.0)


def test_a_restarted_peer_is_read_while_its_old_life_is_removed(
    initiator: Initiator, start_target: StartTarget
) -> None:
    old = start_target(seed=1)
    initiator.add(old)
    initiator.fetched(old, [4], [4])
    _die(old)
    new = start_target(seed=2)
    initiator.send(new.as_peer())
    initiator.remove(old)
    initiator.added(new.instance)
    initiator.fetched(new, [4], [4])
    answer = initiator.answer(initiator.read(old.instance, [4], [5]))
    assert isinstance(answer, ReadFailed)
    assert not answer.posted


def test_reads_asked_for_before_the_removal_are_served(
    initiator: Initiator, start_target: StartTarget
) -> None:
    target = start_target()
    initiator.send(target.as_peer())
    before = initiator.read(target.instance, [1], [1])
    initiator.remove(target)
    after = initiator.read(target.instance, [2], [2])
    assert isinstance(initiator.answer(before), ReadDone)
    answer = initiator.answer(after)
    assert isinstance(answer, ReadFailed)
    assert not answer.posted
    initiator.add(target)
    initiator.fetched(target, [3], [3])


def test_a_removed_peer_can_come_back(initiator: Initiator, start_target: StartTarget) -> None:
    target = start_target()
    for block in range(10):
        initiator.add(target)
        initiator.fetched(target, [block], [block])
        initiator.remove(target)
    assert initiator.counted()["peers_removed"] == 10


def test_adding_a_peer_twice_registers_it_anew(
    initiator: Initiator, start_target: StartTarget
) -> None:
    target = start_target()
    initiator.add(target)
    initiator.fetched(target, [1], [1])
    initiator.add(target)
    initiator.fetched(target, [2], [2])


def test_a_dead_peer_costs_one_failure_and_nothing_else(
    initiator: Initiator, start_target: StartTarget
) -> None:
    dying, well = start_target(seed=1), start_target(seed=2)
    initiator.add(dying)
    initiator.add(well)
    _die(dying)
    read = initiator.read(dying.instance, [1], [1])
    assert isinstance(initiator.answer(read), ReadFailed)
    initiator.fetched(well, [2], [2])
    again = initiator.answer(initiator.read(dying.instance, [3], [3]))
    assert isinstance(again, ReadFailed)
    initiator.settled()
    assert initiator.answers(read) == 1


def test_a_fresh_initiator_takes_over_from_a_killed_one(
    helpers: list[Helper], initiator: Initiator, start_target: StartTarget
) -> None:
    target = start_target()
    initiator.add(target)
    initiator.fetched(target, [1], [1])
    initiator.process.signal(signal.SIGKILL)
    initiator.exit_code(within_s=5.0)
    fresh = Initiator()
    helpers.append(fresh)
    fresh.add(target)
    fresh.fetched(target, [2], [2])


def test_a_stopped_peer_does_not_stop_the_others(
    initiator: Initiator, start_target: StartTarget
) -> None:
    stopped, well = start_target(seed=1), start_target(seed=2)
    initiator.add(stopped)
    initiator.add(well)
    stopped.stop()
    # Between processes of one host the bytes come without the target's help; over a
    # network there is no answer before it runs again.
    read = initiator.read(stopped.instance, [1], [1])
    initiator.fetched(well, [2], [2])
    stopped.process.signal(signal.SIGCONT)
    assert isinstance(initiator.answer(read), ReadDone)
    initiator.check(stopped, [1], [1])
    initiator.settled()
    assert initiator.answers(read) == 1


def test_a_peer_that_hangs_while_it_is_added_fails_and_recovers(
    initiator: Initiator, start_target: StartTarget
) -> None:
    hanging, well = start_target(seed=1), start_target(seed=2)
    peer = hanging.as_peer()
    hanging.stop()
    initiator.send(peer)
    read = initiator.read(hanging.instance, [1], [1])
    initiator.add(well)
    initiator.fetched(well, [2], [2])
    assert "did not end within" in initiator.not_added(hanging.instance)
    answer = initiator.answer(read)
    assert isinstance(answer, ReadFailed)
    assert not answer.posted
    hanging.process.signal(signal.SIGCONT)
    initiator.add(hanging)
    initiator.fetched(hanging, [3], [3])


def test_what_does_not_fit_is_refused_with_the_reason(
    initiator: Initiator, start_target: StartTarget
) -> None:
    target, other = start_target(seed=1), start_target(seed=2)
    peer = target.as_peer()
    replace = msgspec.structs.replace
    for changed, reason in (
        (replace(peer, block_bytes=4096), "its blocks have 4096 bytes, ours 65536"),
        (replace(peer, blocks=0), "its tier has 0 blocks"),
        (replace(peer, blocks=65), "NotFound"),
        (replace(peer, agent="somebody"), "its agent somebody is not named after it"),
        (replace(peer, agent=f"{peer.instance}.other"), "its metadata is not of NIXL agent"),
        (replace(peer, metadata=peer.metadata[:100]), "Mismatch"),
        (replace(peer, metadata=b""), "its metadata is not of NIXL agent"),
    ):
        initiator.send(changed)
        assert reason in initiator.not_added(target.instance)
    own = initiator.instance
    initiator.send(replace(peer, instance=own, agent=initiator.ready().agent))
    assert "belongs to this process already" in initiator.not_added(own)
    initiator.add(target)
    parent = target.instance.removesuffix(".1")
    initiator.send(replace(other.as_peer(), instance=parent, agent=peer.agent))
    assert f"belongs to {target.instance} already" in initiator.not_added(parent)
    initiator.fetched(target, [1], [1])


def test_broken_metadata_in_the_name_of_another_does_not_keep_that_one_out(
    initiator: Initiator, start_target: StartTarget
) -> None:
    """NIXL keeps half of what it cannot load, and refuses what differs from that."""
    target, other = start_target(seed=1), start_target(seed=2)
    peer, liar = target.as_peer(), other.as_peer()
    # The way to the one, under the name of the other, and no memory.
    broken = liar.metadata.replace(liar.agent.encode(), peer.agent.encode())
    broken = broken[: broken.index(b"MemSection") + 20]
    initiator.send(msgspec.structs.replace(liar, metadata=broken))
    assert "is not of NIXL agent" in initiator.not_added(other.instance)
    for one in (target, other):
        initiator.add(one)
        initiator.fetched(one, [1], [1])
