"""mpkv against the classes of every vLLM it claims to work with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Unpacked by `make test`: the wheel itself is for CUDA, its Python sources are enough.
VLLM_033 = ROOT / "build" / "vllm-0.33"


@pytest.mark.parametrize("where", ["installed", "0.33"])
def test_the_interface_is_satisfied(where: str) -> None:
    path = [str(ROOT), str(ROOT / "cli")]
    if where != "installed":
        assert (VLLM_033 / "vllm").is_dir(), f"{VLLM_033} is missing; run `make test`"
        path.insert(0, str(VLLM_033))
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
    assert loaded.startswith(str(VLLM_033)) == (where != "installed")
