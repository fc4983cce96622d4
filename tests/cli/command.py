"""Running the real `mpkv` command in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

NODE = """
[[node]]
name = "a"
port = 7710
"""
GOOD = f"""
[vllm]
model = "some/model"
[tier]
size = "1MiB"
{NODE}"""


def run_mpkv(
    *args: str, env: dict[str, str] | None = None, cwd: Path = REPOSITORY
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mpkv_cli.main", *args],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
    )


def write_config(folder: Path, text: str) -> str:
    path = folder / "cluster.toml"
    path.write_text(text)
    return str(path)
