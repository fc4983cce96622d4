"""Ends the helpers before vLLM ends by force whatever its engine has started.

A server that is told to end gives its engine `--shutdown-timeout` seconds for the requests in
flight, and then kills the processes that are left, and says so. Helpers serve until a second
before. Without a timeout vLLM kills all in the very moment in which it tells the engine: then
nothing is done here, since a process that vanishes while vLLM lists them trips it.
"""

import signal
import threading
from collections.abc import Callable
from typing import Any

# Killed helpers of a large tier take a part of it to give its mappings up.
LAST_S = 1.0


def leave_in_time(shutdown_timeout_s: float, leave: Callable[[], None]) -> None:
    """Have `leave`, which does not block, called in time once vLLM ends this engine.

    To be called while vLLM makes its engine, when its handlers are in place.
    """
    if not shutdown_timeout_s or threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        handler = signal.getsignal(number)
        # Python's own for SIGINT raises; where vLLM has none it has no plan for the end either.
        if callable(handler) and handler is not signal.default_int_handler:
            signal.signal(number, _also(handler, shutdown_timeout_s - LAST_S, leave))


def _also(
    handler: Callable[[int, Any], Any], after_s: float, leave: Callable[[], None]
) -> Callable[[int, Any], None]:
    def handle(number: int, frame: Any) -> None:
        if after_s > 0:
            timer = threading.Timer(after_s, leave)
            timer.daemon = True
            timer.start()
        else:
            leave()
        handler(number, frame)

    return handle
