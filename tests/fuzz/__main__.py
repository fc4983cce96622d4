"""`python -m tests.fuzz`: every target for an equal part of SECONDS, from SEED.

Each target runs in a process of its own: what takes that down is found out as well. With
the name of a target as argument, only that one runs, in this process.
"""

import importlib
import os
import random
import subprocess
import sys
import tempfile
import time

TARGETS = (
    "source",
    "destination",
    "engine",
    "hosts",
    "rings",
    "initiator",
    "metadata",
    "book",
    "segments",
)
MARGIN_S = 120.0
SHOWN_BYTES = 8000


def main() -> int:
    seconds = float(os.environ.get("SECONDS") or 120)
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))
    if len(sys.argv) > 1:
        print(importlib.import_module(f"tests.fuzz.{sys.argv[1]}").run(seconds, seed))
        return 0
    print(f"SECONDS={seconds:g} SEED={seed}", flush=True)
    return max([_run(target, seconds / len(TARGETS), seed) for target in TARGETS])


def _run(target: str, seconds: float, seed: int) -> int:
    """0 if nothing was found."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz", target],
            env={**os.environ, "SECONDS": str(seconds), "SEED": str(seed)},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            said, _ = child.communicate(timeout=seconds + MARGIN_S)
        except subprocess.TimeoutExpired:
            child.kill()
            said, _ = child.communicate()
        took_s = time.monotonic() - started
        if child.returncode == 0:
            print(f"{target}: {said.split()[-1]} examples in {took_s:.0f} s", flush=True)
            return 0
        end = log.seek(0, os.SEEK_END)
        log.seek(max(end - SHOWN_BYTES, 0))
        print(f"{target}: FOUND, status {child.returncode}\n{said}")
        print(log.read().decode(errors="replace"), flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
