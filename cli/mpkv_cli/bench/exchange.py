"""A bare ZeroMQ exchange between two processes: DEALER here, ROUTER in an echo worker."""

import time
from types import TracebackType
from typing import Self

import zmq

from mpkv.errors import HelperFailed
from mpkv_cli.bench.worker import Worker

ANSWER_MS = 20_000


class Exchange:
    """Use as a context manager."""

    def __init__(self, echo: Worker) -> None:
        self._echo = echo
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.RCVTIMEO, ANSWER_MS)
        self._socket.connect(f"tcp://127.0.0.1:{echo.call('listen')}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._context.destroy(linger=0)

    def answer_with(self, length: int) -> None:
        self._echo.call("answer_with", length=length)

    def once(self, body: bytes) -> float:
        """Send `body`, wait for the answer; how long that took."""
        started = time.perf_counter()
        self._socket.send(body)
        try:
            self._socket.recv()
        except zmq.Again:
            raise HelperFailed("the echo does not answer") from None
        return time.perf_counter() - started
