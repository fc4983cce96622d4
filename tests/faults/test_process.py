"""How helpers appear among the processes of a machine."""

import subprocess
import sys
import time

import psutil

from mpkv.process import NICENESS
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
