"""Helpers that hang while nobody waits for them, and what is not taken for that."""

import re
import signal
import time
from collections.abc import Callable

import pytest

from mpkv.messages import Bounds, MissReason
from tests.faults.conftest import MakeStandIn
from tests.support.standin import StandIn, make_keys

QUICK = Bounds(beat_s=0.05, looks=20)
COUNTED_BY = {
    "control": ("initiator", "controls_hung"),
    "target": ("control", "targets_hung"),
    "initiator": ("control", "initiators_hung"),
}
NAMES = tuple(COUNTED_BY)


@pytest.mark.parametrize("name", NAMES)
def test_a_helper_that_hangs_while_idle_is_replaced(
    standin: MakeStandIn, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    source, engine = standin("source"), standin("engine", bounds=QUICK)
    keys, later = make_keys("before", 6), make_keys("after", 6)
    source.store(keys + later)
    assert engine.pull("r", source.address, keys) == [True] * 6
    _seen_to_beat(engine)
    old = engine.helper(name)
    old.signal(signal.SIGSTOP)
    engine.wait_replaced(name, old)
    engine.pull_until(source, later)
    assert _hangs(engine) == {**dict.fromkeys(NAMES, 0), name: 1}
    said = capfd.readouterr().err
    (warning,) = [line for line in said.splitlines() if "its beat has not changed" in line]
    assert re.search(rf" WARNING mpkv\.\w+ \[engine\] .* \(?pid {old.pid}\b", warning)
    assert "in 20 looks, 0.05 s apart" in warning
    engine.wait_idle()
    assert engine.clean()
    source.wait_clean()


@pytest.mark.parametrize("name", ["target", "control"])
def test_a_source_that_hung_serves_again(standin: MakeStandIn, name: str) -> None:
    source, destination = standin("source", bounds=QUICK), standin("destination")
    keys = make_keys("k", 6)
    source.store(keys)
    old = source.helper(name)
    old.signal(signal.SIGSTOP)
    source.wait_replaced(name, old)
    destination.pull_until(source, keys)
    source.wait_clean()


def test_a_pause_of_the_whole_machine_is_no_hang(standin: MakeStandIn) -> None:
    engine = standin("engine", bounds=QUICK)
    helpers = {name: engine.helper(name) for name in NAMES}
    _beat(engine, QUICK.looks + 1)
    for _ in range(2):
        for helper in helpers.values():
            helper.signal(signal.SIGSTOP)
        # Longer than a hang takes to be told.
        time.sleep(2 * QUICK.looks * QUICK.beat_s)
        for helper in helpers.values():
            helper.signal(signal.SIGCONT)
        _beat(engine, QUICK.looks + 1)
    assert {name: engine.helper(name).pid for name in NAMES} == {
        name: helper.pid for name, helper in helpers.items()
    }
    assert not any(_hangs(engine).values())


def test_an_initiator_with_a_read_to_do_is_judged_by_the_deadline(
    standin: MakeStandIn, capfd: pytest.CaptureFixture[str]
) -> None:
    """As one is that stands in a long READ: many times what a hang takes to be told."""
    source = standin("source")
    engine = standin("engine", bounds=Bounds(beat_s=0.02, looks=15), deadline_s=2.0)
    keys, later = make_keys("before", 6), make_keys("after", 6)
    source.store(keys + later)
    engine.pull_until(source, keys)
    old = engine.helper("initiator")
    old.signal(signal.SIGSTOP)
    # Before the next look: it owes a READ from now on.
    assert engine.pull("r", source.address, later) == [False] * 6
    assert engine.meter.misses[MissReason.TIMED_OUT] == 1
    assert engine.helper("initiator").pid == old.pid
    engine.pull_until(source, later)
    assert engine.helper("initiator").pid != old.pid
    assert not any(_hangs(engine).values())
    assert "s after its deadline" in capfd.readouterr().err


def _hangs(engine: StandIn) -> dict[str, int]:
    return {
        name: engine.ledger.counters(role).value(event)
        for name, (role, event) in COUNTED_BY.items()
    }


def _seen_to_beat(engine: StandIn) -> None:
    """Wait until each has looked at the others after these have beaten."""
    _beat(engine, 1)
    # A process looks after its beat: that of the first one may have been before.
    _beat(engine, 2)


def _beat(engine: StandIn, times: int) -> None:
    """Wait until each has beaten so often."""
    counters = [engine.ledger.counters(role) for role in NAMES]
    before = [each.value("beats") for each in counters]
    _until(
        lambda: all(
            each.value("beats") >= begun + times
            for each, begun in zip(counters, before, strict=True)
        )
    )


def _until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)
