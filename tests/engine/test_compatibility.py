"""Equal records must mean equal blocks: what must tell two models apart."""

import shutil
from pathlib import Path

import pytest
from transformers import LlamaConfig

from mpkv.engine.compatibility import config_identity, model_identity
from mpkv_cli.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    make_tiny_model(folder)
    return folder


def test_one_model_under_two_paths_is_one_model(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "tiny"
    shutil.copytree(model, copy)
    assert model_identity(str(copy)) == model_identity(f"{model}/")
    assert model_identity(str(model)).startswith("tiny@")


def test_a_hub_name_is_its_own_identity() -> None:
    assert model_identity("zai-org/GLM-5.2-FP8") == "zai-org/GLM-5.2-FP8"


@pytest.mark.parametrize("which", range(0, 38, 6))
def test_a_tensor_trained_further_is_another_model(model: Path, tmp_path: Path, which: int) -> None:
    """Wherever in the file it lies: merging an adapter changes a few tensors only."""
    import torch
    from safetensors.torch import load_file, save_file

    other = tmp_path / "tiny"
    shutil.copytree(model, other)
    tensors = load_file(other / "model.safetensors")
    name = sorted(tensors)[which]
    delta = torch.full_like(tensors[name], 0.01)
    save_file({**tensors, name: tensors[name] + delta}, other / "model.safetensors")
    assert model_identity(str(other)) != model_identity(str(model))


@pytest.mark.parametrize("content", [b"", b"\xff" * 7, b"\xff" * 5000, b"\0" * 16])
def test_what_is_no_safetensors_file_has_an_identity_all_the_same(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert "@" in model_identity(str(tmp_path))


def test_an_overridden_config_is_another_model() -> None:
    plain = LlamaConfig(hidden_size=64)
    assert config_identity(plain) == config_identity(LlamaConfig(hidden_size=64))
    assert config_identity(plain) != config_identity(LlamaConfig(hidden_size=128))
    turned = LlamaConfig(hidden_size=64)
    turned.rope_parameters = {"rope_type": "default", "rope_theta": 1234.0}
    assert config_identity(plain) != config_identity(turned)


def test_where_a_config_was_found_does_not_matter() -> None:
    config, moved = LlamaConfig(hidden_size=64), LlamaConfig(hidden_size=64)
    moved._name_or_path = "/elsewhere"
    assert config_identity(config) == config_identity(moved)
