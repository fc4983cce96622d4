"""Hears of requests while the scheduler is busy with a step.

vLLM has no hook there, so `EngineCore.preprocess_add_request` is wrapped, which its input thread
calls with each request that arrives. Only on request (`[pull] head_start`), and only while
that method looks as it did in vLLM 0.32 and 0.33.
"""

import functools
import inspect
import logging
import weakref
from typing import Any, Protocol

from vllm.v1.request import Request

log = logging.getLogger("mpkv.engine")


class Listener(Protocol):
    def received(self, request: Request) -> None:
        """Called on vLLM's input thread."""


# Weak: vLLM may make a connector, drop it and make another.
_listeners: "weakref.WeakSet[Any]" = weakref.WeakSet()


def listen(listener: Listener) -> None:
    """Have `listener` hear of every request from now on, or say in the log why it cannot."""
    # Not at import: the engine's core imports its connector.
    from vllm.v1.engine.core import EngineCore

    method = EngineCore.preprocess_add_request
    if list(inspect.signature(method).parameters) != ["self", "request"]:
        log.warning(
            "[pull] head_start: this vLLM takes requests in differently than 0.32 and 0.33 do; "
            "pulls begin only when the scheduler hears of their request"
        )
        return
    _listeners.add(listener)
    if not hasattr(method, "tells_mpkv"):
        EngineCore.preprocess_add_request = _telling(method)


def _telling(method: Any) -> Any:
    @functools.wraps(method)
    def preprocess_add_request(self: Any, request: Any) -> Any:
        answer = method(self, request)
        for listener in list(_listeners):
            try:
                listener.received(answer[0])
            except Exception:
                log.exception("no early pull for request %s", request.request_id)
        return answer

    preprocess_add_request.tells_mpkv = True  # type: ignore[attr-defined]
    return preprocess_add_request
