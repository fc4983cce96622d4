"""Ends the helpers before vLLM ends by force whatever its engine has started.

A server that is told to end gives its engine what is left of `--shutdown-timeout` for the
requests in flight, then kills the processes that are still there, and says so. So helpers
leave as soon as the engine is told: requests that wait for a pull compute locally. Without a
timeout vLLM kills all in the very moment in which it tells the engine: then nothing is done
here, since a process that vanishes while vLLM lists them trips it.
"""

import signal
import threading
from collections.abc import Callable
from typing import Any


def leave_in_time(shutdown_timeout_s: int, leave: Callable[[], None]) -> None:
    """Have `leave`, which does not block, called once vLLM ends this engine.

    To be called while vLLM makes its engine, when its handlers are in place.
    """
    if not shutdown_timeout_s or threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        handler = signal.getsignal(number)
        # Python's own for SIGINT raises; where vLLM has none it has no plan for the end either.
        if callable(handler) and handler is not signal.default_int_handler:
            signal.signal(number, _also(handler, leave))


def _also(
    handler: Callable[[int, Any], Any], leave: Callable[[], None]
) -> Callable[[int, Any], None]:
    def handle(number: int, frame: Any) -> None:
        leave()
        handler(number, frame)

    return handle
