"""mpkv against the classes of every vLLM it claims to work with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.next_vllm import NEXT_VLLM

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("where", ["installed", "0.33"])
def test_the_interface_is_satisfied(where: str) -> None:
    path = [str(ROOT), str(ROOT / "cli")]
    if where != "installed":
        assert (NEXT_VLLM / "vllm").is_dir(), f"{NEXT_VLLM} is missing; run `make test`"
        path.insert(0, str(NEXT_VLLM))
    result = subprocess.run(
        [sys.executable, "-m", "tests.engine.interface_check"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    loaded = result.stdout.splitlines()[0]
    assert loaded.startswith(str(NEXT_VLLM)) == (where != "installed")
