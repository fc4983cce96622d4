"""Equal records must mean equal blocks where the weights are equal: what else must agree."""

from transformers import LlamaConfig

from mpkv.engine.compatibility import config_identity


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
