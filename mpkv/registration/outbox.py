"""Results on their way to the control plane: none is lost while its ring is full."""

from collections import deque
from typing import Protocol

import msgspec

from mpkv.messages import FromRegistration


class Pushes(Protocol):
    """The producer's side of a ring."""

    def push(self, record: bytes) -> bool: ...


class Outbox:
    """Sends in order. What does not fit waits for `flush`.

    It holds at most one result for each record that the control plane sent, so the control
    plane bounds it.
    """

    def __init__(self, producer: Pushes) -> None:
        self._producer = producer
        self._encode = msgspec.msgpack.Encoder().encode
        self._unsent: deque[bytes] = deque()

    def send(self, result: FromRegistration) -> None:
        self._unsent.append(self._encode(result))
        self.flush()

    def flush(self) -> bool:
        """Push what fits; True when nothing is left."""
        while self._unsent:
            if not self._producer.push(self._unsent[0]):
                return False
            self._unsent.popleft()
        return True
