"""What this engine must share with a peer before the two may share a block."""

import hashlib
import os
import uuid
from typing import Any

from vllm.v1.kv_offload.config import OffloadingConfig

from mpkv.errors import ConfigRefused
from mpkv.messages import Compatibility
from mpkv.settings import EngineSettings

# Enough of each weight file to tell fine-tunes of one architecture apart, and little
# enough to read in milliseconds.
SAMPLE_BYTES = 1 << 20


def model_identity(model: str) -> str:
    """Name the model so that equal names mean equal weights.

    A hub name is its own identity. A local folder is known by its last component and
    a digest over its config and over size, head and tail of every weight file, so
    that replicas may keep it under different paths.
    """
    if not os.path.isdir(model):
        return model
    digest = hashlib.sha256()
    for name in sorted(os.listdir(model)):
        if name != "config.json" and not name.endswith((".safetensors", ".bin", ".gguf")):
            continue
        path = os.path.join(model, name)
        size = os.path.getsize(path)
        digest.update(f"{name}:{size}:".encode())
        with open(path, "rb") as file:
            digest.update(file.read(SAMPLE_BYTES))
            file.seek(max(0, size - SAMPLE_BYTES))
            digest.update(file.read(SAMPLE_BYTES))
    folder = os.path.basename(os.path.normpath(model))
    return f"{folder}@{digest.hexdigest()[:16]}"


def build_compatibility(
    vllm_config: Any, offloading: OffloadingConfig, settings: EngineSettings, block_bytes: int
) -> Compatibility:
    """Collect the record from vLLM's resolved configuration.

    Raises ConfigRefused for a hash algorithm whose keys have no fixed size.
    """
    model = vllm_config.model_config
    algorithm = vllm_config.cache_config.prefix_caching_hash_algo
    dtype = str(model.dtype).removeprefix("torch.")
    return Compatibility(
        model=model_identity(model.model),
        revision=model.revision or settings.revision,
        dtype=f"{dtype}/{model.quantization}" if model.quantization else dtype,
        cache_dtype=offloading.model.dtype,
        kv_layout=_layout_name(offloading),
        tokens_per_block=tuple(group.tokens_per_block for group in offloading.groups),
        blocks_per_chunk=offloading.cache.blocks_per_chunk,
        block_bytes=block_bytes,
        tensor_parallel=offloading.parallel.tp_size,
        pipeline_parallel=offloading.parallel.pp_size,
        prefill_context_parallel=offloading.parallel.pcp_size,
        decode_context_parallel=offloading.parallel.dcp_size,
        hash_algorithm=algorithm,
        hash_seed=_hash_seed(algorithm),
        key_size=_key_size(algorithm),
    )


def _layout_name(offloading: OffloadingConfig) -> str:
    layout = offloading.kv_cache_layout or "unnamed"
    return f"{layout}/replicated" if offloading.replicated_layout else layout


def _key_size(algorithm: str) -> int:
    from vllm.utils.hashing import get_hash_fn_by_name

    try:
        digest = get_hash_fn_by_name(algorithm)(())
    except ValueError as error:
        raise ConfigRefused(f"--prefix-caching-hash-algo {algorithm}: {error}") from None
    # A key is the block hash and the KV-cache group's index in four bytes.
    return len(digest) + 4


def _hash_seed(algorithm: str) -> str:
    """The seed that vLLM chains block hashes from, as far as it can be known here."""
    seed = os.environ.get("PYTHONHASHSEED")
    if seed is not None:
        return seed
    if algorithm.startswith("sha256"):
        return "vLLM's default"
    # Others start from fresh random bytes in each process: equal to nobody's.
    return f"random ({uuid.uuid4().hex[:8]}); set PYTHONHASHSEED"
