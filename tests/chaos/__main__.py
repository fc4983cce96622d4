"""`python -m tests.chaos`: FAULTS and SEED in the environment; status 0 only when clean.

HOSTS=netns puts each engine into a network namespace of its own, with UCX over TCP. By
default each engine checks what it pulls in another way; INTEGRITY=full, sampled or off has
all of them do the same. Logs of the engines are kept when something was found, or with
KEEP_LOGS=1.
"""

import asyncio
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from mpkv.cluster.settings import Integrity
from tests.chaos.namespaces import Namespaces
from tests.chaos.network import Loopback, Network
from tests.chaos.runner import ENGINES, Runner

PAUSE_S = 0.5


def main() -> int:
    faults = int(os.environ.get("FAULTS") or 2000)
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))
    network = _network()
    integrity = _integrity()
    if network is None or integrity is None:
        return 2
    logs = Path(tempfile.mkdtemp(prefix="mpkv-chaos-"))
    print(f"FAULTS={faults} SEED={seed}, logs of the engines in {logs}", flush=True)
    runner = Runner(seed, faults, PAUSE_S, network, integrity, logs)
    asyncio.run(runner.run())
    if runner.tally.clean and not os.environ.get("KEEP_LOGS"):
        shutil.rmtree(logs)
    print("\n".join(runner.tally.summary()), flush=True)
    return 0 if runner.tally.clean else 1


def _network() -> Network | None:
    match os.environ.get("HOSTS", ""):
        case "":
            return Loopback(ENGINES)
        case "netns":
            missing = Namespaces.missing()
        case other:
            missing = f'HOSTS={other}: expected nothing or "netns"'
    if missing:
        print(missing, file=sys.stderr)
        return None
    return Namespaces(ENGINES)


def _integrity() -> dict[str, Integrity] | None:
    wanted = os.environ.get("INTEGRITY", "")
    if not wanted:
        return dict(zip(ENGINES, Integrity, strict=True))
    if wanted in list(Integrity):
        return dict.fromkeys(ENGINES, Integrity(wanted))
    print(f"INTEGRITY={wanted}: expected one of {', '.join(Integrity)}", file=sys.stderr)
    return None


if __name__ == "__main__":
    sys.exit(main())
