"""Terminal records on their way to the engine: none is lost while its ring is full."""

from collections import deque
from typing import Protocol

import msgspec

from mpkv.messages import ToEngine


class Pushes(Protocol):
    """The producer's side of a ring."""

    def push(self, record: bytes) -> bool: ...


class EngineLink:
    """Sends in order. What does not fit waits; nothing is read from the engine meanwhile,
    so that it holds at most what was open already."""

    def __init__(self, producer: Pushes) -> None:
        self._producer = producer
        self._encode = msgspec.msgpack.Encoder().encode
        self._unsent: deque[bytes] = deque()

    @property
    def blocked(self) -> bool:
        return bool(self._unsent)

    def send(self, message: ToEngine) -> None:
        self._unsent.append(self._encode(message))
        self.flush()

    def flush(self) -> None:
        while self._unsent and self._producer.push(self._unsent[0]):
            self._unsent.popleft()
