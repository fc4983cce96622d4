"""Run in a process of its own, with the vLLM to be checked first on the path.

Prints every way in which the installed classes are not what mpkv was written against.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    GroupOffloadConfig,
    OffloadingConnectorScheduler,
    RequestOffloadState,
    TransferJobStatus,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_offload.base import OffloadingManager, OffloadingSpec, OffloadingWorker
from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.request import Request

from mpkv.engine.connector import MpkvConnector
from mpkv.engine.copy_worker import CpuCopyWorker
from mpkv.engine.manager import MpkvManager
from mpkv.engine.spec import MpkvSpec

complaints: list[str] = []


def check_overrides(ours: type, theirs: type) -> None:
    """Every method of ours that theirs has too must take all that theirs takes."""
    if inspect.isabstract(ours):
        missing = ", ".join(sorted(ours.__abstractmethods__))  # type: ignore[attr-defined]
        complaints.append(f"{ours.__name__} does not implement {missing}")
    for name, method in vars(ours).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        base = getattr(theirs, name, None)
        if not callable(base):
            continue
        accepted = list(inspect.signature(method).parameters)
        for parameter in inspect.signature(base).parameters:
            if parameter not in accepted and parameter not in ("args", "kwargs"):
                complaints.append(f"{ours.__name__}.{name} does not take {parameter!r}")


def check_takes(callee: Callable[..., Any], *names: str) -> None:
    found = inspect.signature(callee).parameters
    for name in names:
        if name not in found:
            complaints.append(f"{callee.__qualname__} takes no {name!r} any more")


def check_source(callee: Callable[..., Any], *fragments: str) -> None:
    """Private names have no signature to check; at least they must still be there."""
    source = inspect.getsource(callee)
    for fragment in fragments:
        if fragment not in source:
            complaints.append(f"{callee.__qualname__} has no {fragment!r} any more")


check_overrides(MpkvManager, OffloadingManager)
check_overrides(CpuCopyWorker, OffloadingWorker)
check_overrides(MpkvConnector, OffloadingConnector)
check_overrides(MpkvSpec, OffloadingSpec)
check_takes(
    SharedOffloadRegion.__init__,
    "engine_id", "num_chunks", "rank", "kv_bytes_per_chunk", "cpu_page_size",
)  # fmt: skip
check_takes(
    CPUOffloadingWorker.__init__, "kv_caches", "blocks_per_chunk", "num_cpu_chunks", "mmap_region"
)
check_takes(GroupOffloadConfig.load_window_size_in_chunks, "num_tokens")
if list(inspect.signature(EngineCore.preprocess_add_request).parameters) != ["self", "request"]:
    complaints.append("EngineCore.preprocess_add_request takes something else by now")
for name in ("block_hashes", "resumable", "abort_immediately", "skip_reading_prefix_cache"):
    check_source(Request.__init__, f"self.{name}")
check_source(RequestOffloadState.update_offload_keys, "hashes_per_chunk", "make_offload_key")
check_source(OffloadingConnectorScheduler.__init__, "self._req_status", "self._jobs")
check_source(OffloadingConnectorScheduler.on_new_request, "self._req_status[request.request_id]")
check_source(RequestOffloadState.update_offload_keys, "group_state.offload_keys.append")
check_source(TransferJobStatus, "pending_count")
check_source(MpkvSpec.__mro__[1].__init__, "self.num_chunks", "self.kv_bytes_per_chunk")
for owner, name in [(RequestOffloadState, "req_context"), (RequestOffloadState, "group_states")]:
    if name not in owner.__dataclass_fields__:
        complaints.append(f"{owner.__name__} has no field {name!r} any more")

import vllm  # noqa: E402

print(vllm.__file__)
for complaint in complaints:
    print("complaint:", complaint)
sys.exit(1 if complaints else 0)
