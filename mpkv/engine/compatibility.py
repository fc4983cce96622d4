"""What this engine must share with a peer before the two may share a block."""

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

from vllm.v1.kv_offload.config import OffloadingConfig

from mpkv.cluster.settings import EngineSettings
from mpkv.errors import ConfigRefused
from mpkv.messages import Compatibility

# Read from the middle of every tensor: training, merging and quantizing change tensors
# as a whole, so this tells versions of one architecture apart without reading them.
SAMPLE_BYTES = 4096
# For weight files whose tensors are not listed up front.
STRIDE_BYTES = 1 << 20
LONGEST_HEADER = 256 << 20

# Where the model was found and what wrote its config say nothing of its content.
IRRELEVANT_CONFIG = ("_name_or_path", "transformers_version")


def model_identity(model: str) -> str:
    """Name the model so that equal names mean equal weights.

    A hub name is its own identity. A local folder is known by its last component and a
    digest over every weight file's size, table of tensors and a sample of each tensor,
    so that replicas may keep it under different paths.
    """
    if not os.path.isdir(model):
        return model
    digest = hashlib.sha256()
    for name in sorted(os.listdir(model)):
        if name.endswith((".safetensors", ".bin", ".gguf", ".pt")):
            path = os.path.join(model, name)
            digest.update(f"{name}:{os.path.getsize(path)}:".encode())
            with open(path, "rb") as file:
                _sample(file, name.endswith(".safetensors"), digest.update)
    folder = os.path.basename(os.path.normpath(model))
    return f"{folder}@{digest.hexdigest()[:16]}"


def _sample(file: BinaryIO, listed: bool, update: Callable[[bytes], object]) -> None:
    size = os.fstat(file.fileno()).st_size
    places: Iterable[int] = range(0, size, STRIDE_BYTES)
    if listed and size >= 8:
        # safetensors: the header's length in 8 bytes, the header in JSON, the tensors.
        length = int.from_bytes(file.read(8), "little")
        if length <= min(size - 8, LONGEST_HEADER):
            header = file.read(length)
            update(header)
            offsets = [entry["data_offsets"] for entry in _tensors(header)]
            places = (8 + length + (begin + end) // 2 for begin, end in offsets)
    for place in places:
        file.seek(place)
        update(file.read(SAMPLE_BYTES))


def _tensors(header: bytes) -> list[dict[str, Any]]:
    try:
        listed = json.loads(header)
        return [entry for name, entry in sorted(listed.items()) if name != "__metadata__"]
    except (ValueError, AttributeError, TypeError):
        return []


def config_identity(config: Any) -> str:
    """A digest of the model's resolved config, with whatever overrides were given."""
    fields = {k: v for k, v in config.to_dict().items() if k not in IRRELEVANT_CONFIG}
    text = json.dumps(fields, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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
        model=f"{model_identity(model.model)}/{config_identity(model.hf_text_config)}",
        revision=_revision(model) or settings.revision,
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


def _revision(model: Any) -> str:
    """The commit that a hub name stands for here and now; a branch moves."""
    return getattr(model.hf_config, "_commit_hash", None) or model.revision or ""


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
