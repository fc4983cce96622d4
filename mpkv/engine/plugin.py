"""vLLM's `general_plugins` entry point: makes the connector known by its class name.

`MultiConnector` looks its children's classes up by `__name__` when it reports metrics.
"""


def register() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if "MpkvConnector" not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(
            "MpkvConnector", "mpkv.engine.connector", "MpkvConnector"
        )
