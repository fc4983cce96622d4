"""Helpers run before what spins on their core, where the machine allows it."""

import subprocess
import sys

import psutil

from mpkv.priority import NICENESS
from tests.faults.conftest import MakeStandIn


def test_helpers_go_first_where_they_may(standin: MakeStandIn) -> None:
    allowed = subprocess.run(
        [sys.executable, "-c", f"import os; os.setpriority(os.PRIO_PROCESS, 0, {NICENESS})"],
        stderr=subprocess.DEVNULL,
        timeout=30,
    )
    expected = psutil.Process().nice() if allowed.returncode else NICENESS
    engine = standin("engine")
    for name in ("control", "target", "initiator"):
        assert psutil.Process(engine.helper(name).pid).nice() == expected
