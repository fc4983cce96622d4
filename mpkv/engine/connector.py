"""`MpkvConnector`: vLLM's offloading connector, with pulls from peers.

A pull starts when the scheduler hears of a request, or with `head_start` when the engine
does, and is usually over before the scheduler first looks at it.
"""

import logging
import math
from typing import Any

import torch
import vllm
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import (
    build_offloading_config,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    KV_LOAD_TIERS_KEY,
    SchedulerOffloadConfig,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import (
    OffloadingConnector,
)
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.kv_offload.base import Locality, Medium, make_offload_key
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from mpkv.engine.compatibility import build_compatibility
from mpkv.engine.content import LookedMetadata, LookMetadata
from mpkv.engine.input_thread import listen
from mpkv.engine.last_second import leave_in_time
from mpkv.engine.log_line import LoggedStats
from mpkv.engine.logs import log_beside_vllm
from mpkv.engine.manager import MpkvManager
from mpkv.engine.source import find_source, parse_source
from mpkv.engine.spec import MpkvSpec
from mpkv.engine.weight_changes import listen as listen_for_weights
from mpkv.engine.weights import Weights
from mpkv.errors import ConfigRefused
from mpkv.messages import KeyGroup

log = logging.getLogger("mpkv.engine")


class MpkvConnector(OffloadingConnector):
    """Named in `--kv-transfer-config` with module path `mpkv.engine.connector`."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        log_beside_vllm()
        _refuse_what_is_not_supported(vllm_config)
        super().__init__(vllm_config, role, kv_cache_config)
        # Worker reports still owed for jobs that a cache reset made stale, where vLLM
        # does not keep that account itself (before 0.33).
        self._stale_reports: dict[int, int] = {}
        # Whether vLLM asks about a waiting request in this step.
        self._asked = False
        if role != KVConnectorRole.SCHEDULER:
            # Set once the model is there, and what it was in the last look.
            self._weights: Weights | None = None
            self._looked = 0
            self._seen: bytes | None = None
            return
        manager = self.scheduler.manager
        assert isinstance(manager, MpkvManager)
        self._manager = manager
        self._keeps_account = hasattr(self.scheduler, "_reset_fence")
        offloading = build_offloading_config(vllm_config, kv_cache_config)
        manager.start(
            build_compatibility(vllm_config, offloading, manager.settings, manager.block_bytes),
            offloading.parallel.world_size,
        )
        listen_for_weights(self)
        leave_in_time(vllm_config.shutdown_timeout, manager.stop_helpers)
        if manager.settings.head_start:
            listen(self)

    # --- requests --------------------------------------------------------------------

    def received(self, request: Request) -> None:
        """Begin the request's pull at once. Called on vLLM's input thread: reads the shared
        table and takes from a stock, and touches nothing else that the scheduler uses."""
        params = request.kv_transfer_params
        source = find_source(params)
        if (
            source is None
            or not self._manager.may_pull_from(source)
            or not _wants_pull(request)
            or request.abort_immediately
            # Whether these allow it is decided where vLLM reads them.
            or (params and KV_LOAD_TIERS_KEY in params)
        ):
            return
        packed = [
            b"".join(
                make_offload_key(block_hash, group.group_idx)
                for block_hash in request.block_hashes[
                    group.hashes_per_chunk - 1 :: group.hashes_per_chunk
                ]
            )
            for group in self.scheduler.config.kv_group_configs
        ]
        groups, present = self._key_groups(packed, request.num_tokens)
        peer, also = self._manager.ranks_of(source)
        self._manager.pulls.begin(request.request_id, peer, groups, present, also)

    def on_new_request(self, request: Request) -> None:
        super().on_new_request(request)
        try:
            self._start_pull(request)
        except Exception:
            # vLLM does not guard this hook: what is raised here ends the engine, for
            # what must be no worse than a miss.
            log.exception("no pull for request %s", request.request_id)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        self._asked = True
        pulls = self._manager.pulls
        pulls.drain()
        if pulls.pending(request.request_id):
            # From a flag, without a scan: this is asked at every step.
            return None, False
        matched = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if matched[0] is not None:
            pulls.looked_up(request.request_id)
        return matched

    def _start_pull(self, request: Request) -> None:
        if self._manager.pulls.claim(request.request_id):
            return
        source = parse_source(request.kv_transfer_params)
        if source is None or not _wants_pull(request):
            return
        if not self._manager.may_pull_from(source):
            self._manager.refuse_source(source)
            return
        if self._manager.content.lost:
            self._manager.refuse_for_content(source)
            return
        status = self.scheduler._req_status[request.request_id]
        if not status.req_context.load_tier_filter.allows(Medium.CPU, Locality.REMOTE):
            return
        status.update_offload_keys()
        packed = [b"".join(group.offload_keys) for group in status.group_states]
        groups, present = self._key_groups(packed, status.req.num_tokens)
        if any(group.keys for group in groups):
            peer, also = self._manager.ranks_of(source)
            self._manager.pulls.start(request.request_id, peer, groups, present, also)

    def _key_groups(
        self, packed: list[bytes], num_tokens: int
    ) -> tuple[tuple[KeyGroup, ...], bytes]:
        """A request's keys per group, less the leading tokens that are here already; and
        the keys of those."""
        configs = self.scheduler.config.kv_group_configs
        windows = [config.load_window_size_in_chunks(num_tokens) for config in configs]
        steps = [config.tokens_per_chunk for config in configs]
        size = self._manager.ledger.key_size
        here = 0
        if not any(windows):
            # A window may reach back before the boundary, so this is for full
            # attention alone.
            prefix = self._manager.ledger.lookup_prefix
            here = min(prefix(keys) * step for keys, step in zip(packed, steps, strict=True))
            here -= here % math.lcm(*steps)
        cuts = [here // step * size for step in steps]
        groups = tuple(
            KeyGroup(keys[cut:], step, window or 0)
            for keys, cut, step, window in zip(packed, cuts, steps, windows, strict=True)
        )
        return groups, b"".join(keys[:cut] for keys, cut in zip(packed, cuts, strict=True))

    # --- cache reset, before vLLM 0.33 -----------------------------------------------

    def reset_cache(self) -> bool | None:
        if not self._keeps_account:
            for job_id, job in self.scheduler._jobs.items():
                self._stale_reports[job_id] = job.pending_count
        result = super().reset_cache()
        if _all_free(self._kv_cache_manager):
            self._manager.content.all_gone()
        if not self._keeps_account and not self._stale_reports:
            self._manager.on_reset_flushed()
        return result

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self._manager.trace("step_done")
        meta = connector_output.kv_connector_worker_meta
        if self._stale_reports and isinstance(meta, OffloadingWorkerMetadata):
            for job_id, count in meta.completed_jobs.items():
                owed = self._stale_reports.get(job_id, 0) - count
                if owed > 0:
                    self._stale_reports[job_id] = owed
                else:
                    self._stale_reports.pop(job_id, None)
            if not self._stale_reports:
                self._manager.on_reset_flushed()
        if isinstance(meta, LookedMetadata):
            for (look, rank), digest in meta.seen.items():
                self._manager.content.seen(look, rank, digest)
        super().update_connector_output(connector_output)

    # --- what the weights are ----------------------------------------------------------

    def weights_may_change(self) -> None:
        self._manager.content.may_change()

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        super().register_kv_caches(kv_caches)
        parallel = self._vllm_config.parallel_config
        skip_experts = parallel.data_parallel_size > 1 or parallel.enable_eplb
        self._weights = Weights(skip_experts=skip_experts)
        assert self.connector_worker is not None
        spec = self.connector_worker.spec
        assert isinstance(spec, MpkvSpec)
        spec.leave_digest(self._look())

    def _look(self) -> bytes:
        """What the weights are; none if nobody can tell: then nothing is shared."""
        assert self._weights is not None
        try:
            return self._weights.digest()
        except Exception:
            # Raised in a worker, it would end the engine.
            log.exception("the weights cannot be sampled")
            return b""

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        look = getattr(connector_metadata, "look", 0)
        if look > self._looked:
            # Before the step computes anything.
            self._looked, self._seen = look, self._look()

    def build_connector_worker_meta(self) -> OffloadingWorkerMetadata | None:
        meta = super().build_connector_worker_meta()
        seen, self._seen = self._seen, None
        if seen is None:
            return meta
        meta = meta or OffloadingWorkerMetadata()
        rank = self._vllm_config.parallel_config.rank
        return LookedMetadata(
            meta.completed_jobs, meta.transfer_stats, {(self._looked, rank): seen}
        )

    # --- log -------------------------------------------------------------------------

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> LoggedStats:
        """vLLM asks for it where it logs; its metrics take `data` as it is."""
        return LoggedStats() if data is None else LoggedStats(data=data)

    # --- trace -----------------------------------------------------------------------

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        meta = super().build_connector_meta(scheduler_output)
        working = self._asked or scheduler_output.total_num_scheduled_tokens > 0
        self._asked = False
        look = self._manager.content.to_look(working)
        if look:
            meta = LookMetadata(**vars(meta), look=look)
        self._manager.trace("step_scheduled", tokens=scheduler_output.total_num_scheduled_tokens)
        return meta


def _all_free(kv_cache_manager: KVCacheManager | None) -> bool:
    """Whether no request holds a block; one is vLLM's own and always taken."""
    if kv_cache_manager is None:
        return False
    pool = kv_cache_manager.block_pool
    return pool.get_num_free_blocks() >= pool.num_gpu_blocks - 1


def _wants_pull(request: Request) -> bool:
    return not (request.skip_reading_prefix_cache or request.resumable)


def _refuse_what_is_not_supported(vllm_config: VllmConfig) -> None:
    nodes = vllm_config.parallel_config.nnodes_within_dp
    if nodes > 1:
        raise ConfigRefused(
            f"--nnodes: this engine spans {nodes} hosts, and mpkv's tier is one host's shared "
            "memory. Use tensor parallelism within a host and data parallelism across hosts."
        )
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config
    wanted = "sync_load_budget_bytes"
    if extra.get(wanted) and wanted not in SchedulerOffloadConfig._fields:
        raise ConfigRefused(
            f"[tier] sync_load_budget: vLLM {vllm.__version__} cannot load within a step. "
            "Leave it out of the cluster file, or use vLLM 0.33 or later."
        )
