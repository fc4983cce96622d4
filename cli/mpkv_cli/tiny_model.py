"""A small Llama with seeded random weights: real enough to compare tokens, quick to load.

One block of 128 tokens is 256 KiB of bfloat16 KV cache (4 layers, 2 KV heads of 64), so
16,384 tokens fill 128 blocks. The weights are scaled as trained ones are, and so are the
logits: a block of wrong bytes changes the tokens.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path

# The folder's name, where the demo makes it.
TINY_MODEL = "tiny-llama"
HIDDEN, INTERMEDIATE, LAYERS = 512, 1024, 4
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 64
MAX_TOKENS = 32768
# 256 bytes and the two tokens that mark begin and end of a text.
BEGIN, END = 256, 257
VOCABULARY = 258

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "max_position_embeddings": MAX_TOKENS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "vocab_size": VOCABULARY,
    "bos_token_id": BEGIN,
    "eos_token_id": END,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
}
_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<begin>",
    "eos_token": "<end>",
    "model_max_length": MAX_TOKENS,
}


def make_tiny_model(directory: Path) -> None:
    """Write the model unless it is there already. The same files come out every time."""
    if (directory / "config.json").exists():
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    # Renamed when whole: an interrupted run leaves no half model under the final name.
    draft = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        (draft / "config.json").write_text(json.dumps(_CONFIG, indent=2))
        (draft / "tokenizer_config.json").write_text(json.dumps(_TOKENIZER_CONFIG, indent=2))
        _write_tokenizer(draft / "tokenizer.json")
        _write_weights(draft / "model.safetensors")
        draft.chmod(0o755)
        os.rename(draft, directory)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write_tokenizer(path: Path) -> None:
    """One token per byte, so that every text has as many tokens as bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken("<begin>", special=True), AddedToken("<end>", special=True)]
    )
    tokenizer.save(str(path))


def _write_weights(path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(20240229)

    def weight(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        scale = gain / columns**0.5
        values = torch.empty(rows, columns).normal_(0.0, scale, generator=generator)
        return values.to(torch.bfloat16)

    def ones() -> torch.Tensor:
        return torch.ones(HIDDEN, dtype=torch.bfloat16)

    tensors = {
        "model.embed_tokens.weight": weight(VOCABULARY, HIDDEN, gain=HIDDEN**0.5),
        "model.norm.weight": ones(),
        # Logits of a few units: the largest stands clear of rounding.
        "lm_head.weight": weight(VOCABULARY, HIDDEN, gain=4.0),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        # Sharp attention: with flat attention thousands of random tokens average out,
        # and the tokens would hardly depend on the prompt.
        shapes = {
            "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN, 2.0),
            "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN, 2.0),
            "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN, 1.0),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM, 1.0),
            "mlp.gate_proj": (INTERMEDIATE, HIDDEN, 1.0),
            "mlp.up_proj": (INTERMEDIATE, HIDDEN, 1.0),
            "mlp.down_proj": (HIDDEN, INTERMEDIATE, 1.0),
        }
        for name, (rows, columns, gain) in shapes.items():
            tensors[f"{prefix}.{name}.weight"] = weight(rows, columns, gain)
        tensors[f"{prefix}.input_layernorm.weight"] = ones()
        tensors[f"{prefix}.post_attention_layernorm.weight"] = ones()
    save_file(tensors, str(path), metadata={"format": "pt"})
