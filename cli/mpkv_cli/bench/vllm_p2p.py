# mypy: disallow-subclassing-any=False
"""vLLM's own P2P tier on the CPU platform, for comparison. Runs inside vLLM's processes.

vLLM refuses to offload on that platform for want of a worker that copies there; with
mpkv's, everything else of the tier is vLLM's own code.
"""

import contextlib
import os

from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingManager, OffloadingWorker
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from mpkv.engine.copy_worker import CpuCopyWorker
from mpkv.engine.region import region_path
from mpkv_cli.bench.calm import sleep_in_message_queues, sleep_in_progress_thread


class VllmP2pOnCpu(TieringOffloadingSpec):
    """`TieringOffloadingSpec` with a worker for CPU tensors."""

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self._cpu_worker: OffloadingWorker | None = None

    def get_manager(self) -> OffloadingManager:
        if self._manager is None:
            sleep_in_progress_thread()
            super().get_manager()
            # All workers have mapped the region by now, and vLLM leaves its name behind.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(region_path(self.config.engine_id))
        return self._manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._cpu_worker is None:
            self._cpu_worker = self.create_worker(kv_caches)
        return self._cpu_worker

    def create_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        region = SharedOffloadRegion(
            engine_id=self.config.engine_id,
            num_chunks=self.num_chunks,
            rank=0 if self.replicated_layout else self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        try:
            return CpuCopyWorker(kv_caches, self.blocks_per_chunk, region)
        except Exception:
            region.cleanup()
            raise


# vLLM imports this module, for its spec, once in each of its processes.
sleep_in_message_queues()
