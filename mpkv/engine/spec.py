"""`MpkvSpec`: what vLLM's offloading connector builds its manager and workers from."""

import fcntl
import logging
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    OffloadingManager,
    OffloadingMetricMetadata,
    OffloadingWorker,
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from mpkv.cluster.settings import check_exposure, decode_settings
from mpkv.engine import metrics
from mpkv.engine.copy_worker import CpuCopyWorker
from mpkv.engine.huge_pages import create_with_huge_pages
from mpkv.engine.manager import MpkvManager
from mpkv.engine.region import leave_digest, region_path
from mpkv.errors import ConfigRefused

log = logging.getLogger("mpkv.engine")


class MpkvSpec(CPUOffloadingSpec):
    """vLLM's CPU offloading with a tier that helper processes can map."""

    @classmethod
    def build_metric_definitions(
        cls, extra_config: dict[str, Any]
    ) -> dict[str, OffloadingMetricMetadata]:
        return {**super().build_metric_definitions(extra_config), **metrics.definitions()}

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self.settings = decode_settings(config.extra_config.get("mpkv"))
        check_exposure(self.settings)
        if self.num_chunks == 0:
            raise ConfigRefused(
                f"tier.size: {self.extra_config['cpu_bytes_to_use']} bytes hold no block of "
                f"{self.kv_bytes_per_chunk} bytes; give the tier room for at least a few hundred."
            )
        self._mpkv_manager: MpkvManager | None = None
        self._mpkv_worker: OffloadingWorker | None = None
        self._region: SharedOffloadRegion | None = None

    def _uses_shared_region(self) -> bool:
        return True

    def get_manager(self) -> OffloadingManager:
        if self._mpkv_manager is None:
            self._mpkv_manager = MpkvManager(
                self.settings,
                self.config.engine_id,
                self.config.parallel.data_parallel_index,
                self.num_chunks,
                self.kv_bytes_per_chunk,
                self.kv_events_config.enable_kv_cache_events,
                getattr(self, "cpu_info", None),
            )
        return self._mpkv_manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._mpkv_worker is None:
            region = self._create_region()
            self._region = region
            try:
                self._mpkv_worker = self._worker_on(kv_caches, region)
            except Exception:
                region.cleanup()
                raise
        return self._mpkv_worker

    def leave_digest(self, digest: bytes) -> None:
        """For the engine's start: what this worker computes with."""
        assert self._region is not None
        leave_digest(self._region.fd, self.config.parallel.rank, digest)

    def _create_region(self) -> SharedOffloadRegion:
        """Create or join the region, leaving it named: the engine has yet to open it.

        The first worker may lay huge pages under it before anybody maps it. The lock
        tells `mpkv launch` that the name is in use, should the engine die before it
        could remove it.
        """
        if self.settings.huge_pages == "auto":
            self._lay_huge_pages()
        region = SharedOffloadRegion(
            engine_id=self.config.engine_id,
            num_chunks=self.num_chunks,
            rank=0 if self.replicated_layout else self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        fcntl.flock(region.fd, fcntl.LOCK_SH)
        return region

    def _lay_huge_pages(self) -> None:
        parallel = self.config.parallel
        if parallel.rank == 0:
            size = self.num_chunks * self.kv_bytes_per_chunk
            got = create_with_huge_pages(region_path(self.config.engine_id), size)
            log.info("[%s] CPU tier: %s", self.settings.node, got)
        if parallel.world_size > 1:
            from vllm.distributed.parallel_state import get_world_group

            get_world_group().barrier()

    def _worker_on(
        self, kv_caches: CanonicalKVCaches, region: SharedOffloadRegion
    ) -> OffloadingWorker:
        if current_platform.is_cpu():
            return CpuCopyWorker(kv_caches, self.blocks_per_chunk, region)
        return CPUOffloadingWorker(
            kv_caches=kv_caches,
            blocks_per_chunk=self.blocks_per_chunk,
            num_cpu_chunks=self.num_chunks,
            mmap_region=region,
        )
