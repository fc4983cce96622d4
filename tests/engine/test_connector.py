"""What the connector refuses before vLLM builds anything."""

from types import SimpleNamespace
from typing import Any

import pytest
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole

from mpkv.engine.connector import MpkvConnector
from mpkv.errors import ConfigRefused


def config(**extra: Any) -> Any:
    return SimpleNamespace(
        parallel_config=SimpleNamespace(nnodes_within_dp=1),
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra),
    )


def test_a_vllm_that_cannot_load_within_a_step_is_not_asked_to() -> None:
    with pytest.raises(ConfigRefused) as refused:
        MpkvConnector(config(sync_load_budget_bytes=1 << 20), KVConnectorRole.WORKER, None)
    assert str(refused.value) == (
        f"[tier] sync_load_budget: vLLM {vllm.__version__} cannot load within a step. "
        "Leave it out of the cluster file, or use vLLM 0.33 or later."
    )
