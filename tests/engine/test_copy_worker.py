"""The CPU copy worker on vLLM's real region and specs."""

import uuid
from collections.abc import Iterator

import pytest
import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

from mpkv.engine.copy_worker import CpuCopyWorker

PAGE = 1000
BLOCKS = 12
CHUNKS = 6


def caches(groups: int) -> CanonicalKVCaches:
    """One tensor per group, its bytes all different."""
    generator = torch.Generator().manual_seed(1)
    tensors = [
        CanonicalKVCacheTensor(
            torch.randint(-128, 127, (BLOCKS, PAGE), dtype=torch.int8, generator=generator), PAGE
        )
        for _ in range(groups)
    ]
    return CanonicalKVCaches(tensors, [[CanonicalKVCacheRef(i, PAGE)] for i in range(groups)])


@pytest.fixture(params=[1, 3])
def per_chunk(request: pytest.FixtureRequest) -> int:
    size: int = request.param
    return size


@pytest.fixture
def region(per_chunk: int) -> Iterator[SharedOffloadRegion]:
    row = 4096 * 3
    region = SharedOffloadRegion(f"mpkv-test-{uuid.uuid4().hex}", CHUNKS, 0, row, row)
    yield region
    region.cleanup()


def test_what_is_stored_is_loaded(per_chunk: int, region: SharedOffloadRegion) -> None:
    kv = caches(groups=2)
    worker = CpuCopyWorker(kv, per_chunk, region)
    before = [tensor.tensor.clone() for tensor in kv.tensors]
    # Group 0 starts inside a chunk when chunks hold several blocks.
    chunks = {1: [5, 2, 3, 0], 3: [5, 2, 3]}[per_chunk]
    blocks = GPULoadStoreSpec([7, 1, 4, 9], group_sizes=[2, 2], block_indices=[2, 6])
    assert worker.submit_store(1, blocks, CPULoadStoreSpec(chunks))
    for block in (7, 1):
        kv.tensors[0].tensor[block] = 0
    for block in (4, 9):
        kv.tensors[1].tensor[block] = 0
    assert worker.submit_load(2, CPULoadStoreSpec(chunks), blocks)
    for tensor, original in zip(kv.tensors, before, strict=True):
        assert torch.equal(tensor.tensor, original)
    results = worker.get_finished()
    assert [(r.job_id, r.success, r.transfer_size) for r in results] == [
        (1, True, 4 * PAGE),
        (2, True, 4 * PAGE),
    ]
    assert worker.get_finished() == []
    worker.shutdown()


def test_a_row_holds_the_pages_one_after_another(
    per_chunk: int, region: SharedOffloadRegion
) -> None:
    kv = caches(groups=1)
    worker = CpuCopyWorker(kv, per_chunk, region)
    blocks = list(range(per_chunk))
    worker.submit_store(
        1, GPULoadStoreSpec(blocks, group_sizes=[per_chunk], block_indices=[0]),
        CPULoadStoreSpec([4]),
    )  # fmt: skip
    row = region.base_tensor[4 * 4096 * 3 :][: PAGE * per_chunk].clone()
    assert torch.equal(row, kv.tensors[0].tensor[:per_chunk].flatten())
    worker.shutdown()


def test_chunks_that_do_not_match_the_blocks_are_refused(
    per_chunk: int, region: SharedOffloadRegion
) -> None:
    worker = CpuCopyWorker(caches(groups=1), per_chunk, region)
    spec = GPULoadStoreSpec([0], group_sizes=[1], block_indices=[0])
    with pytest.raises(AssertionError, match="names 2 chunks where its blocks fill 1"):
        worker.submit_store(1, spec, CPULoadStoreSpec([1, 2]))
    worker.shutdown()
