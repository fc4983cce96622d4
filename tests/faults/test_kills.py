"""kill -9 of every process, at every point of a pull, and what recovers."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mpkv.engine.helper_process import HelperProcess
from mpkv.messages import Bounds, MissReason
from tests.faults.conftest import MakeStandIn
from tests.support.leftovers import Leftovers
from tests.support.standin import StandIn, make_keys

Pair = tuple[StandIn, StandIn]
HELPERS = ("control", "target", "initiator")


@pytest.mark.parametrize("name", ["control", "target", "initiator"])
@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_killed_helper_comes_back(pair: Pair, side: str, name: str) -> None:
    source, destination = pair
    keys, later = make_keys("before", 6), make_keys("after", 6)
    source.store(keys + later)
    assert destination.pull("r1", source.address, keys) == [True] * 6
    victim = source if side == "source" else destination
    old = victim.helper(name)
    old.signal(signal.SIGKILL)
    _until(lambda: victim.helper(name).pid != old.pid)
    destination.pull_until(source, later)
    destination.wait_idle()
    assert destination.clean()
    source.wait_clean()


def test_the_target_survives_its_initiator(standin: MakeStandIn) -> None:
    engine = standin("engine")
    target, initiator = engine.helper("target"), engine.helper("initiator")
    initiator.signal(signal.SIGKILL)
    _until(lambda: engine.helper("initiator").pid != initiator.pid)
    assert engine.helper("target").pid == target.pid


def test_kills_at_random_points_never_give_wrong_bytes(standin: MakeStandIn) -> None:
    """Twelve rounds of pulls with one helper killed somewhere in each."""
    source = standin("source", blocks=512, block_bytes=65536)
    destination = standin("destination", blocks=512, block_bytes=65536, deadline_s=3.0)
    generator = random.Random(20)
    for turn in range(12):
        keys = make_keys(f"turn {turn}", 100)
        source.store(keys)
        destination.start_pull(f"r{turn}", source.address, keys)
        until = time.monotonic() + generator.uniform(0, 0.03)
        while time.monotonic() < until:
            destination.step()
        victim = generator.choice((source, destination))
        victim.helper(generator.choice(("control", "target", "initiator"))).signal(signal.SIGKILL)
        destination.wait(f"r{turn}")
        for key in keys:
            destination.holds(key)
        destination.pulls.finished(f"r{turn}")
    destination.wait_idle()
    assert destination.clean()
    source.wait_clean()
    destination.pull_until(source, make_keys("turn 11", 100)[:5])


def test_a_read_that_outlives_its_source(standin: MakeStandIn, tmp_path: Path) -> None:
    """On one host a READ of a dead process's memory goes on and reports success. The
    source's helpers are killed while it runs and its memory is rewritten at once."""
    size = 1 << 19
    source = standin("source", blocks=700, block_bytes=size)
    destination = standin("destination", blocks=800, block_bytes=size, trace_dir=str(tmp_path))
    warm = make_keys("warm", 2)
    source.store(warm)
    destination.pull_until(source, warm)
    keys = make_keys("large", 690)
    source.store(keys)
    posted = _traced(tmp_path, "read_posted")
    helpers = {name: destination.helper(name) for name in ("control", "initiator")}
    helpers["initiator"].signal(signal.SIGSTOP)
    destination.start_pull("r", source.address, keys)
    _until(lambda: _traced(tmp_path, "read_posted") > posted)
    # Stopped, it cannot ask for confirmation before the source is dead.
    helpers["control"].signal(signal.SIGSTOP)
    before = destination.tier[::size]
    helpers["initiator"].signal(signal.SIGCONT)
    _until(lambda: destination.tier[::size] != before)
    source.helper("control").signal(signal.SIGKILL)
    source.helper("target").signal(signal.SIGKILL)
    # What an engine does that hears of the death: pins are void, memory is reused.
    source.tier[:] = bytes(len(source.tier))
    helpers["control"].signal(signal.SIGCONT)
    destination.wait("r")
    assert [destination.holds(key) for key in keys] == [False] * len(keys)
    assert sum(destination.meter.misses.values()) == 1
    destination.pulls.finished("r")
    destination.wait_idle()
    assert destination.clean()


# An engine of its own, whose helpers' pids it prints when they are where the test wants them.
ENGINE = """
import sys, time
from tests.support.standin import StandIn
engine = StandIn("engine")
engine.supervisor.start()
if sys.argv[1] == "running":
    engine.wait_ready()
print(*[engine.helper(name).pid for name in ("control", "target", "initiator")], flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("phase", "stopped"),
    [*(("running", name) for name in (*HELPERS, "none", "all")), ("starting", "all")],
)
def test_the_engine_is_killed(phase: str, stopped: str) -> None:
    """Nothing of ours is left two seconds after the engine is gone, whatever state it is in."""
    before = Leftovers.now()
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE, phase], stdout=subprocess.PIPE, text=True
    )
    assert engine.stdout is not None
    pids = dict(zip(HELPERS, map(int, engine.stdout.readline().split()), strict=True))
    for name, pid in pids.items():
        if stopped in (name, "all"):
            os.kill(pid, signal.SIGSTOP)
    assert len(before.new(within_s=0)) == 3
    engine.kill()
    engine.wait(10)
    engine.stdout.close()
    left = before.new(within_s=2.0)
    for pid in pids.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert left == []


def test_a_helper_is_the_kernels_to_end_before_it_runs_at_all() -> None:
    """Stopped in its very first instruction, it has had no chance to ask for that itself."""
    ended: list[int] = []

    def start_one_and_end() -> None:
        process = HelperProcess("mpkv.control", Bounds(), [])
        process.signal(signal.SIGSTOP)
        ended.append(process.pid)

    thread = threading.Thread(target=start_one_and_end)
    thread.start()
    thread.join()
    _, status = os.waitpid(ended[0], 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


@pytest.mark.parametrize("stopped", ["control", "target", "initiator", "all"])
def test_shutdown_does_not_wait_for_who_is_stopped(standin: MakeStandIn, stopped: str) -> None:
    engine = standin("engine")
    helpers = {name: engine.helper(name) for name in HELPERS}
    for name, helper in helpers.items():
        if stopped in (name, "all"):
            helper.signal(signal.SIGSTOP)
    began = time.monotonic()
    engine.supervisor.shutdown()
    assert time.monotonic() - began < 1.5
    assert not any(os.path.exists(f"/proc/{helper.pid}") for helper in helpers.values())


def test_shutdown_is_harmless_twice(standin: MakeStandIn) -> None:
    engine = standin("engine")
    helpers = [engine.helper(name) for name in ("control", "target", "initiator")]
    engine.supervisor.shutdown()
    engine.supervisor.shutdown()
    for helper in helpers:
        assert not os.path.exists(f"/proc/{helper.pid}")
    assert engine.pull("r", "127.0.0.1:1", make_keys("off", 3)) == [False] * 3
    assert engine.meter.misses == {MissReason.HELPERS_DOWN: 1}
    assert engine.clean()


def _traced(folder: Path, event: str) -> int:
    text = "".join(path.read_text() for path in folder.glob("*.jsonl"))
    return text.count(f'"event": "{event}"')


def _until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)
