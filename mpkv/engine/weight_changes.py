"""Hears when somebody is let at vLLM's workers, and may change the weights there.

vLLM has no hook for it: whatever updates, reloads or swaps weights calls the workers by
`EngineCore.collective_rpc`, or wakes them up, and what it does there nobody else can know.
So those two are wrapped, on the class.
"""

import functools
import logging
import weakref
from typing import Any, Protocol

log = logging.getLogger("mpkv.engine")

METHODS = ("collective_rpc", "wake_up")


class Listener(Protocol):
    def weights_may_change(self) -> None:
        """Called on the scheduler's thread, before the workers are."""


# Weak: vLLM may make a connector, drop it and make another.
_listeners: "weakref.WeakSet[Any]" = weakref.WeakSet()


def listen(listener: Listener) -> None:
    # Not at import: the engine's core imports its connector.
    from vllm.v1.engine.core import EngineCore

    _listeners.add(listener)
    for name in METHODS:
        method = getattr(EngineCore, name, None)
        if method is None:
            log.warning(
                "this vLLM has no EngineCore.%s: weights that change without a cache reset are "
                "not noticed",
                name,
            )
        elif not hasattr(method, "tells_mpkv"):
            setattr(EngineCore, name, _telling(method))


def _telling(method: Any) -> Any:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        for listener in list(_listeners):
            listener.weights_may_change()
        return method(*args, **kwargs)

    call.tells_mpkv = True  # type: ignore[attr-defined]
    return call
