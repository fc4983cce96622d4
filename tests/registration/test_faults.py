"""Faults inside NIXL: exactly one result for each READ, and the process goes on or leaves."""

from collections.abc import Callable

import pytest

from mpkv.messages import ReadFailed
from tests.registration.harness import Helper, Initiator, Target

MIB = 1 << 20
StartTarget = Callable[..., Target]
StartFaulty = Callable[..., Initiator]


@pytest.fixture
def start_faulty(helpers: list[Helper], monkeypatch: pytest.MonkeyPatch) -> StartFaulty:
    def start(fault: str, lane: int = 1, block_bytes: int = 65536) -> Initiator:
        monkeypatch.setenv("FAULT", fault)
        monkeypatch.setenv("FAULTY_LANE", str(lane))
        initiator = Initiator(block_bytes=block_bytes, module="tests.registration.faulty")
        helpers.append(initiator)
        return initiator

    return start


@pytest.mark.parametrize("fault", ["post raises", "poll raises"])
def test_an_exception_in_a_read_is_its_one_result(
    start_faulty: StartFaulty, start_target: StartTarget, fault: str
) -> None:
    initiator, target = start_faulty(fault), start_target()
    initiator.add(target)
    initiator.fetched(target, [1], [1])
    failing = initiator.read(target.instance, [2], [2])
    assert initiator.answer(failing) == ReadFailed(failing, "OSError: injected", posted=True)
    initiator.fetched(target, [3], [3])
    initiator.add(target)
    initiator.fetched(target, [4], [4])
    # Its bytes may still be on their way, so nothing of it may be torn down.
    initiator.remove(target)
    assert initiator.counted()["peers_removed"] == 0
    assert initiator.answers(failing) == 1


def test_a_peer_removed_behind_its_back_recovers_when_added_again(
    start_faulty: StartFaulty, start_target: StartTarget
) -> None:
    initiator, target = start_faulty("peer removed behind its back"), start_target()
    initiator.add(target)
    initiator.fetched(target, [1], [1])
    failing = initiator.read(target.instance, [2], [2])
    answer = initiator.answer(failing)
    assert isinstance(answer, ReadFailed)
    assert not answer.posted
    assert "has to be added again" in answer.detail
    assert "lost its registration" in initiator.not_added(target.instance)
    initiator.add(target)
    initiator.fetched(target, [2], [2])
    assert initiator.answers(failing) == 1


@pytest.mark.parametrize("lane", [1, 2])
@pytest.mark.parametrize("fault", ["post raises", "poll raises"])
def test_a_part_that_fails_fails_its_whole_read_once(
    start_faulty: StartFaulty, start_target: StartTarget, fault: str, lane: int
) -> None:
    initiator = start_faulty(fault, lane, block_bytes=MIB)
    target = start_target(block_bytes=MIB)
    initiator.add(target)
    initiator.fetched(target, range(16), range(16))
    failing = initiator.read(target.instance, range(16, 32), range(16, 32))
    assert initiator.answer(failing) == ReadFailed(failing, "OSError: injected", posted=True)
    initiator.fetched(target, range(32, 64), range(32, 64))
    initiator.remove(target)
    assert initiator.counted()["peers_removed"] == 0
    assert initiator.answers(failing) == 1


@pytest.mark.parametrize("lane", [1, 2])
def test_a_read_of_which_one_part_cannot_start_leaves_its_slots_free(
    start_faulty: StartFaulty, start_target: StartTarget, lane: int
) -> None:
    initiator = start_faulty("peer removed behind its back", lane, block_bytes=MIB)
    target = start_target(block_bytes=MIB)
    initiator.add(target)
    initiator.fetched(target, range(16), range(16))
    failing = initiator.read(target.instance, range(16, 32), range(16, 32))
    answer = initiator.answer(failing)
    assert isinstance(answer, ReadFailed)
    assert not answer.posted
    assert "has to be added again" in answer.detail
    # Nothing of it may land any more.
    initiator.tier[16 * MIB : 32 * MIB] = bytes(16 * MIB)
    assert "lost its registration" in initiator.not_added(target.instance)
    initiator.add(target)
    initiator.fetched(target, range(32, 64), range(32, 64))
    assert initiator.tier[16 * MIB : 32 * MIB] == bytes(16 * MIB)
    assert initiator.answers(failing) == 1
    initiator.remove(target)
    assert initiator.counted()["peers_removed"] == 1


def test_an_agent_that_hangs_at_start_ends_the_process(
    start_faulty: StartFaulty, capfd: pytest.CaptureFixture[str]
) -> None:
    assert start_faulty("hang at start").exit_code(within_s=5.0) == 3
    assert "ERROR mpkv.initiator [test] not ready 1 s after the start" in capfd.readouterr().err


def test_an_agent_that_hangs_at_start_with_the_gil_ends_the_process(
    start_faulty: StartFaulty, capfd: pytest.CaptureFixture[str]
) -> None:
    assert start_faulty("hang at start with the GIL").exit_code(within_s=5.0) == 1
    assert "Timeout (0:00:01.5" in capfd.readouterr().err


def test_a_hang_inside_nixl_does_not_keep_the_process(
    start_faulty: StartFaulty, start_target: StartTarget
) -> None:
    initiator, target = start_faulty("post hangs"), start_target()
    initiator.add(target)
    initiator.fetched(target, [1], [1])
    initiator.read(target.instance, [2], [2])
    initiator.engine.die()
    assert initiator.exit_code(within_s=3.0) == 0
