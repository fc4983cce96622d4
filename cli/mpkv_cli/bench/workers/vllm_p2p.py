"""vLLM's own P2P tier without an engine: a source that is served once a step, or a
destination that looks up. Its tier, its sessions and its messages are vLLM's own classes.
"""

import contextlib
import os
import time
from typing import Any

from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, ScheduleEndContext
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)

from mpkv.errors import HelperFailed
from mpkv_cli.bench.standin import KEY_SIZE, TOKENS_PER_KEY, free_port
from mpkv_cli.bench.steps import StepLoop
from mpkv_cli.bench.vllm_p2p import VllmP2pOnCpu
from mpkv_cli.bench.worker import serve

# What vLLM's engine sleeps between two steps without anything to compute.
PAUSE_S = 0.001
LOOKUP_S = 60.0
_NOTHING_SCHEDULED = ScheduleEndContext((), ())


class P2pWorker:
    """Methods are called by name; see `mpkv_cli.bench.worker`."""

    def __init__(self) -> None:
        self._manager: Any = None
        self._steps: StepLoop | None = None
        self._requests = 0

    def close(self) -> None:
        self.rest()
        if self._manager is not None:
            self._manager.shutdown()
            self._manager = None

    def open(self, blocks: int, block_bytes: int) -> list[Any]:
        """Make the tier; the host and port at which peers reach it."""
        port = free_port()
        self._manager = VllmP2pOnCpu(_config(blocks, block_bytes, port)).get_manager()
        return ["127.0.0.1", port]

    # --- the source --------------------------------------------------------------------

    def store(self, keys: str) -> None:
        """Hold these keys, packed and in hexadecimal."""
        primary, context = self._manager.primary_tier, ReqContext("store")
        stored = primary.prepare_store(_split(keys), context)
        if stored is None:
            raise HelperFailed("vLLM's tier is too small for what it is to store")
        primary.complete_store(stored.keys_to_store, context, True)

    def step(self, step_s: float, held: float) -> None:
        self.rest()
        self._steps = StepLoop(step_s, held, self._serve)

    def rest(self) -> None:
        if self._steps is not None:
            self._steps.stop()
            self._steps = None

    def _serve(self) -> None:
        """What the scheduler does for the tier once a step, at the end of schedule()."""
        self._manager.on_schedule_end(_NOTHING_SCHEDULED)

    # --- the destination ---------------------------------------------------------------

    def look_up(self, host: str, port: int, keys: str) -> float:
        """Seconds until all keys are known to be hits, in an engine that steps on idly."""
        tier = self._manager.secondary_tiers[0]
        wanted = _split(keys)
        self._requests += 1
        name = f"{os.getpid()}-{self._requests}"
        source = {"kv_request_id": name, "remote_host": host, "remote_port": port}
        context = ReqContext(name, {"remote_kv_source": source})
        tier.on_new_request(context)
        started = time.perf_counter()
        while True:
            tier.get_finished_jobs()
            found = {tier.lookup(key, context) for key in wanted}
            seconds = time.perf_counter() - started
            if found == {LookupResult.HIT}:
                break
            if LookupResult.MISS in found or seconds > LOOKUP_S:
                raise HelperFailed(f"vLLM's P2P tier answers {found} after {seconds:.1f} s")
            tier.on_schedule_end(_NOTHING_SCHEDULED)
            time.sleep(PAUSE_S)
        tier.on_request_finished(context)
        return seconds


def _config(blocks: int, block_bytes: int, port: int) -> OffloadingConfig:
    """One worker, one group of full attention."""
    return OffloadingConfig(
        groups=(OffloadingGroupConfig(TOKENS_PER_KEY, ("layer",), 0),),
        worker_kv_bytes_per_block=block_bytes,
        enable_kv_cache_events=False,
        extra_config={
            "cpu_bytes_to_use": blocks * block_bytes,
            "secondary_tiers": [{"type": "p2p", "host": "127.0.0.1", "port": port}],
        },
        engine_id=f"mpkv-bench-{os.getpid()}",
        model=OffloadingModelConfig("stand-in", "bfloat16"),
        cache=OffloadingCacheConfig(TOKENS_PER_KEY, 1),
        parallel=OffloadingParallelConfig(
            rank=0,
            world_size=1,
            tp_size=1,
            pp_size=1,
            pcp_size=1,
            dcp_size=1,
            data_parallel_index=0,
            data_parallel_size=1,
            data_parallel_rank_local=None,
            is_parallelism_agnostic=True,
        ),
    )


def _split(keys: str) -> list[OffloadKey]:
    packed = bytes.fromhex(keys)
    return [OffloadKey(packed[at : at + KEY_SIZE]) for at in range(0, len(packed), KEY_SIZE)]


if __name__ == "__main__":
    with contextlib.closing(P2pWorker()) as p2p_worker:
        serve(
            {
                name: getattr(p2p_worker, name)
                for name in ("open", "store", "step", "rest", "look_up")
            }
        )
