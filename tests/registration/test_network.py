"""READs that need the target's help, as over a network: UCX without same-host copies."""

import signal
from collections.abc import Callable

import pytest

from mpkv.messages import ReadDone, ReadFailed
from tests.registration.harness import Initiator, Target

StartTarget = Callable[..., Target]


@pytest.fixture(autouse=True)
def _tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")


def test_bytes_arrive(start_target: StartTarget, initiator: Initiator) -> None:
    target = start_target()
    initiator.add(target)
    initiator.fetched(target, range(63), range(1, 64))


def test_a_read_of_a_stopped_peer_stays_open_and_its_removal_waits(
    start_target: StartTarget, initiator: Initiator
) -> None:
    stopped, well = start_target(seed=1), start_target(seed=2)
    initiator.add(stopped)
    initiator.add(well)
    stopped.stop()
    read = initiator.read(stopped.instance, range(40), range(40))
    initiator.remove(stopped)
    initiator.fetched(well, [2], [50])
    counted = initiator.counted()
    assert (counted["peers_removed"], initiator.answers(read)) == (0, 0)
    stopped.process.signal(signal.SIGCONT)
    assert isinstance(initiator.answer(read), ReadDone)
    initiator.check(stopped, range(40), range(40))
    assert initiator.counted()["peers_removed"] == 1


def test_a_peer_that_dies_in_a_read_quarantines_it(
    start_target: StartTarget, initiator: Initiator
) -> None:
    dying, well = start_target(seed=1), start_target(seed=2)
    initiator.add(dying)
    initiator.add(well)
    dying.stop()
    read = initiator.read(dying.instance, range(40), range(40))
    initiator.settled()
    dying.process.signal(signal.SIGKILL)
    answer = initiator.answer(read)
    assert isinstance(answer, ReadFailed)
    assert answer.posted
    initiator.remove(dying)
    initiator.fetched(well, [2], [50])
    assert initiator.counted()["peers_removed"] == 0
    assert initiator.answers(read) == 1
