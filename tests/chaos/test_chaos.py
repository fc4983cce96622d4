"""A short run of `make chaos`, under one seed."""

import os
import re
import subprocess
import sys
from pathlib import Path

FAULTS = 50
LIMIT_S = 240


def test_fifty_faults_give_no_wrong_block_and_leave_nothing_behind() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.chaos"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "FAULTS": str(FAULTS), "SEED": "20"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    last = run.stdout.splitlines()[-1]
    counts = re.fullmatch(r"faults=(\d+) pulls=(\d+) hits=(\d+) wrong=0 endless=0 leaked=0", last)
    assert counts is not None, last
    faults, pulls, hits = (int(count) for count in counts.groups())
    assert faults == FAULTS
    # Otherwise the faults met nothing that they could have spoiled.
    assert pulls >= hits > FAULTS
