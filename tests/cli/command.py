"""Running the real `mpkv` command in a process of its own."""

import os
import socket
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def stand_in_vllm(folder: Path, script: str) -> dict[str, str]:
    """An environment in which `script` is what runs as vLLM's command line."""
    package = folder / "packages" / "vllm" / "entrypoints" / "cli"
    package.mkdir(parents=True)
    for level in (package, package.parent, package.parent.parent):
        (level / "__init__.py").touch()
    (package / "main.py").write_text(script)
    paths = [str(folder / "packages"), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
