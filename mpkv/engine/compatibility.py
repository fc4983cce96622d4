"""What this engine must share with a peer before the two may share a block."""

import hashlib
import json
import os
import uuid
from typing import Any

from vllm.v1.kv_offload.config import OffloadingConfig

from mpkv.cluster.settings import EngineSettings
from mpkv.errors import ConfigRefused
from mpkv.messages import Compatibility

# Where the model was found and what wrote its config say nothing of its content.
IRRELEVANT_CONFIG = ("_name_or_path", "transformers_version")


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
        model=f"{_architecture(model)}/{config_identity(model.hf_text_config)}",
        content=settings.content,
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


def _architecture(model: Any) -> str:
    """Not where it was found: what its weights are, the workers look up."""
    return "+".join(getattr(model.hf_config, "architectures", None) or ["model"])


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
