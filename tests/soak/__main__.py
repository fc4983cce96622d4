"""`python -m tests.soak`: SECONDS and SEED in the environment; status 0 only when clean.

VLLM=next runs engines of vLLM's next version, which load some hits within a step.

Logs of the engines are kept when something was found, or with KEEP_LOGS=1.
"""

import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from mpkv_cli.tiny_model import make_tiny_model
from tests.e2e.servers import Fleet
from tests.soak.prompts import draw_prompts
from tests.soak.runner import Runner
from tests.soak.tally import Tally
from tests.support.leftovers import Leftovers
from tests.support.next_vllm import NEXT_VLLM

PROMPTS = 30
# Blocks of 128 tokens on each engine: three or four requests fill them.
GPU_BLOCKS = 42
# About half of the prompts' blocks, so that blocks are evicted and pulled anew all the time.
TIER = "60MiB"
# Of a step. About half of the prompts fit, one at a time.
NEXT_BUDGET = "6MiB"


def main() -> int:
    seconds = float(os.environ.get("SECONDS") or 300)
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))
    logs = Path(tempfile.mkdtemp(prefix="mpkv-soak-"))
    print(f"SECONDS={seconds:g} SEED={seed}, logs of the engines in {logs}", flush=True)
    make_tiny_model(logs / "tiny")
    before = Leftovers.now()
    is_next = os.environ.get("VLLM") == "next"
    fleet = Fleet(
        logs,
        logs / "tiny",
        gpu_blocks={"a": GPU_BLOCKS, "b": GPU_BLOCKS},
        tier=TIER,
        sync_load_budget=NEXT_BUDGET if is_next else "",
        vllm=NEXT_VLLM if is_next else None,
    )
    try:
        tally = _soak(fleet, seconds, seed)
    finally:
        fleet.stop()
    tally.leaks += before.new()
    tally.leaks += [f"process {pid}" for server in fleet.servers for pid in server.processes()]
    if tally.clean and not os.environ.get("KEEP_LOGS"):
        shutil.rmtree(logs)
    print("\n".join(tally.summary()), flush=True)
    return 0 if tally.clean else 1


def _soak(fleet: Fleet, seconds: float, seed: int) -> Tally:
    reference = fleet.serve_without_mpkv(fleet.b)
    reference.wait_healthy()
    prompts = draw_prompts(reference, seed, PROMPTS)
    reference.stop()
    servers = (fleet.launch(fleet.a), fleet.launch(fleet.b))
    for server in servers:
        server.wait_healthy()
    runner = Runner(servers, prompts, seed)
    runner.run(seconds)
    return runner.tally


if __name__ == "__main__":
    sys.exit(main())
