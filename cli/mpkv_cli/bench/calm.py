"""vLLM without the waiting that makes two engines starve each other on two cores.

Runs inside vLLM's processes; both systems that `mpkv bench e2e` compares get it alike, as
far as they have these parts.
"""

import math
import time
from typing import Any

from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

# The writer's wake-up can be lost when two follow each other closely.
RECHECK_MS = 1
# NIXL's Python API asks for 0, with which an agent's progress thread spins a whole core.
PROGRESS_DELAY_US = 1000


def sleep_in_message_queues() -> None:
    """Let readers of vLLM's message queues sleep until the writer wakes them.

    vLLM has them look again and again, yielding the core in between, for a second after
    each message.
    """
    wait = SpinCondition.wait

    def sleep(condition: SpinCondition, timeout_ms: int | None = None) -> None:
        last_read = condition.last_read
        if time.monotonic() > last_read + condition.busy_loop_s:
            wait(condition, timeout_ms)
            return
        condition.last_read = -math.inf
        try:
            wait(condition, RECHECK_MS)
        finally:
            condition.last_read = last_read

    SpinCondition.wait = sleep


def sleep_in_progress_thread() -> None:
    """Have the progress thread of every NIXL agent that is made after this call sleep."""
    import nixl._api as api

    # Which of several packages stands behind `nixl._api` is known only now.
    bindings = vars(api)["nixlBind"]
    base = bindings.nixlAgentConfig

    def keep_delay(config: Any, ignored: int) -> None:
        base.pthrDelay.__set__(config, PROGRESS_DELAY_US)

    delay = property(lambda config: PROGRESS_DELAY_US, keep_delay)
    bindings.nixlAgentConfig = type("CalmConfig", (base,), {"pthrDelay": delay})
