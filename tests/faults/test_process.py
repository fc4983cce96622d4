"""How helpers appear among the processes of a machine."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mpkv.processes.orphans import SHARED_MEMORY
from mpkv.processes.process import NICENESS
from tests.faults.conftest import MakeStandIn

NAMES = ("control", "target", "initiator")


def test_helpers_have_their_names_and_go_first_where_they_may(standin: MakeStandIn) -> None:
    allowed = subprocess.run(
        [sys.executable, "-c", f"import os; os.setpriority(os.PRIO_PROCESS, 0, {NICENESS})"],
        stderr=subprocess.DEVNULL,
        timeout=30,
    )
    niceness = psutil.Process().nice() if allowed.returncode else NICENESS
    engine = standin("engine")
    helpers = [psutil.Process(engine.helper(name).pid) for name in NAMES]
    expected = [(f"mpkv-{name}", niceness) for name in NAMES]
    until = time.monotonic() + 20.0
    while (seen := [(helper.name(), helper.nice()) for helper in helpers]) != expected:
        assert time.monotonic() < until, seen
        time.sleep(0.01)


def test_helpers_go_first_among_sessions_too(standin: MakeStandIn) -> None:
    """Where Linux shares the CPU out by sessions, niceness counts within one alone."""
    autogroup = Path("/proc/self/autogroup")
    allowed = subprocess.run(
        [sys.executable, "-c", f"import os; os.setpriority(os.PRIO_PROCESS, 0, {NICENESS})"],
        stderr=subprocess.DEVNULL,
        timeout=30,
    )
    if allowed.returncode or not autogroup.exists() or not autogroup.read_text():
        pytest.skip("this user may not, or this kernel does not")
    engine = standin("engine")
    for name in NAMES:
        pid = engine.helper(name).pid
        until = time.monotonic() + 20.0
        while not Path(f"/proc/{pid}/autogroup").read_text().endswith(f" nice {NICENESS}\n"):
            assert time.monotonic() < until, Path(f"/proc/{pid}/autogroup").read_text()
            time.sleep(0.01)
    # The engine's own session keeps its place.
    assert autogroup.read_text().endswith(" nice 0\n")


def test_shared_memory_of_a_killed_helper_goes_with_it(standin: MakeStandIn) -> None:
    engine = standin("engine")
    initiator = engine.helper("initiator")
    # As UCX leaves one if it is killed in the moment between making it and mapping it.
    orphan = SHARED_MEMORY / f"ucx_shm_posix_{os.getpid():x}"
    orphan.write_bytes(b"x")
    initiator.signal(signal.SIGKILL)
    engine.wait_replaced("initiator", initiator)
    assert not orphan.exists()
