# mypy: disallow-subclassing-any=False
"""mpkv in a vLLM whose message queues sleep. Runs inside vLLM's processes."""

from mpkv.engine.spec import MpkvSpec
from mpkv_cli.bench.calm import sleep_in_message_queues


class CalmMpkvSpec(MpkvSpec):
    """mpkv's own, unchanged: named here so that vLLM imports this module."""


sleep_in_message_queues()
