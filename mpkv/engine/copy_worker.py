"""The KV copy worker for vLLM's CPU platform, where vLLM itself brings none.

"GPU" blocks are then rows of ordinary tensors; a copy is a `memcpy` and is over when
the call returns. On CUDA the spec uses vLLM's own worker.
"""

import time
from collections.abc import Iterator

import numpy as np
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion


class CpuCopyWorker(OffloadingWorker):
    """Copies pages between the model's KV cache and the rows of the tier."""

    def __init__(
        self, kv_caches: CanonicalKVCaches, blocks_per_chunk: int, region: SharedOffloadRegion
    ) -> None:
        """Take over `region`; `kv_caches.tensors` have shape (blocks, page bytes).

        A row of the region holds, for each tensor in order, `blocks_per_chunk` pages.
        """
        self._blocks_per_chunk = blocks_per_chunk
        self._region: SharedOffloadRegion | None = region
        self._groups = kv_caches.group_data_refs
        self._pages: list[np.ndarray] = []
        self._rows: list[np.ndarray] = []
        for cache in kv_caches.tensors:
            self._pages.append(cache.tensor.numpy())
            row = region.create_next_worker_view(cache.page_size_bytes * blocks_per_chunk)
            self._rows.append(row.unflatten(1, (blocks_per_chunk, cache.page_size_bytes)).numpy())
        self._finished: list[TransferResult] = []

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        self._copy(job_id, src_spec, dst_spec, store=True)
        return True

    def submit_load(
        self,
        job_id: int,
        src_spec: LoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        expedited: bool = False,
    ) -> bool:
        self._copy(job_id, dst_spec, src_spec, store=False)
        return True

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Nothing to wait for: every copy is over when its submission returns."""

    def shutdown(self) -> None:
        # The views must go first: the region cannot unmap what they still export.
        self._rows.clear()
        self._pages.clear()
        if self._region is not None:
            self._region.cleanup()
            self._region = None

    def _copy(
        self, job_id: int, blocks: GPULoadStoreSpec, chunks: LoadStoreSpec, *, store: bool
    ) -> None:
        assert isinstance(chunks, BlockIDsLoadStoreSpec)
        started = time.perf_counter()
        copied = 0
        for group, places in self._places(blocks, chunks.block_ids):
            refs = self._groups[group]
            for block, chunk, position in places:
                for ref in refs:
                    size = ref.page_size_bytes
                    page = self._pages[ref.tensor_idx][block, :size]
                    row = self._rows[ref.tensor_idx][chunk, position, :size]
                    if store:
                        row[:] = page
                    else:
                        page[:] = row
                    copied += size
        self._finished.append(TransferResult(job_id, True, copied, time.perf_counter() - started))

    def _places(
        self, blocks: GPULoadStoreSpec, chunk_ids: np.ndarray
    ) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
        """Yield `(group, [(block, chunk, position in the chunk)])` for each group.

        A group's blocks are logically contiguous from `block_indices[group]`, which
        need not be the start of a chunk; its chunks follow those of the group before.
        """
        per_chunk = self._blocks_per_chunk
        next_block = next_chunk = 0
        for group, (count, first) in enumerate(
            zip(blocks.group_sizes, blocks.block_indices, strict=True)
        ):
            if count == 0:
                continue
            skip = first % per_chunk
            places = []
            for index in range(count):
                chunk, position = divmod(skip + index, per_chunk)
                places.append(
                    (
                        int(blocks.block_ids[next_block + index]),
                        int(chunk_ids[next_chunk + chunk]),
                        position,
                    )
                )
            yield group, places
            next_block += count
            next_chunk += -(-(skip + count) // per_chunk)
        if next_chunk != len(chunk_ids):
            raise AssertionError(
                f"a copy names {len(chunk_ids)} chunks where its blocks fill {next_chunk}"
            )
