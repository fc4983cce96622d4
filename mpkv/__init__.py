"""mpkv: vLLM replicas reuse each other's KV cache through helper processes."""

__version__ = "0.1.0"
