"""A peer that only looks up: it greets, asks and confirms, and never READs.

It measures what a destination's control plane sees, from handing a message to ZeroMQ until
the answer is decoded, with the code of a control plane for both.
"""

import math
import time
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

import zmq

from mpkv.control.network.sockets import Outgoing
from mpkv.control.network.wire import (
    PROTOCOL,
    Ask,
    Busy,
    Confirm,
    Confirmed,
    Grant,
    Hello,
    Release,
    ToDestination,
    ToSource,
    Welcome,
    decode_to_destination,
    encode,
    unpack_grant,
)
from mpkv.errors import HelperFailed
from mpkv.messages import KeyGroup
from mpkv_cli.bench.standin import KEY_SIZE, TOKENS_PER_KEY, compatibility

ANSWER_S = 20.0
GREET_S = 20.0
LEASE_MS = 60_000

Answer = TypeVar("Answer", Grant, Confirmed)


class Granted(NamedTuple):
    seconds: float
    grant: Grant


class Probe:
    """One session with the control plane at `address`. Use as a context manager."""

    def __init__(
        self,
        address: str,
        block_bytes: int,
        name: str = "probe",
        beside: "Probe | None" = None,
    ) -> None:
        """`beside` another probe it shares that one's socket, and is not closed by itself."""
        self._name = name
        self._block_bytes = block_bytes
        self._shares = beside is not None
        self._context: zmq.Context[zmq.Socket[bytes]]
        self._outgoing: Outgoing
        if beside is not None:
            self._context, self._outgoing = beside._context, beside._outgoing
        else:
            # A control plane has a thread for each of its two sockets.
            self._context = zmq.Context(io_threads=2)
            self._outgoing = Outgoing(self._context, KEY_SIZE)
        self._poller = zmq.Poller()
        self._poller.register(self._outgoing.socket, zmq.POLLIN)
        self._route = self._outgoing.connect(address)
        self._asks = 0
        self.welcome = self._greet()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._shares:
            self._context.destroy(linger=0)

    def ask(self, keys: bytes) -> Granted:
        """Ask for all of `keys`, which the source must hold."""
        ask = self.make_ask(keys)
        started = time.perf_counter()
        self._send(ask)
        grant = self._await(Grant)
        unpack_grant(grant, len(keys) // KEY_SIZE, ask.limit)
        seconds = time.perf_counter() - started
        if len(grant.blocks) // 4 != ask.limit:
            raise HelperFailed(f"{len(grant.blocks) // 4} of {ask.limit} keys were granted")
        return Granted(seconds, grant)

    def confirm(self, grant: Grant) -> float:
        """End the lease as after a READ; how long that took."""
        confirm = Confirm(self.welcome.instance, grant.ask, grant.lease, grant.content)
        started = time.perf_counter()
        self._send(confirm)
        self._await(Confirmed)
        return time.perf_counter() - started

    def post(self, keys: bytes) -> None:
        """Ask without waiting; `collect` takes the answers."""
        self._send(self.make_ask(keys))

    def collect(self, within_s: float) -> int:
        """Take the grants that come within that time, rounded up to a millisecond, and
        release them; how many."""
        if not self._poller.poll(math.ceil(within_s * 1000)):
            return 0
        answers = 0
        while (received := self._outgoing.receive()) is not None:
            grant = decode_to_destination(received[1][1])
            if not isinstance(grant, Grant):
                raise HelperFailed(f"the source answers {grant}, expected a grant")
            self._send(Release(self.welcome.instance, grant.ask))
            answers += 1
        return answers

    def make_ask(self, keys: bytes) -> Ask:
        self._asks += 1
        group = KeyGroup(keys, TOKENS_PER_KEY, 0)
        limit = len(keys) // KEY_SIZE
        welcome = self.welcome
        return Ask(welcome.instance, self._asks, (group,), limit, LEASE_MS, welcome.content)

    def exchanged_bytes(self, keys: bytes) -> tuple[bytes, int]:
        """An ask as it travels, and how long its answer is: for bare exchanges of the same."""
        ask = self.make_ask(keys)
        granted = self.ask(keys)
        self.confirm(granted.grant)
        return encode(ask), len(encode(granted.grant))

    def _greet(self) -> Welcome:
        # Of its own, like its instance: who comes with another's address replaces that one.
        own = f"{self._name}-{time.monotonic_ns()}"
        hello = Hello(own, self._name, own, compatibility(self._block_bytes), b"")
        until = time.monotonic() + GREET_S
        while time.monotonic() < until:
            self._send(hello)
            answer = self._receive(until)
            if isinstance(answer, Welcome):
                return answer
            if not isinstance(answer, Busy):
                break
            time.sleep(0.05)
        raise HelperFailed("the source does not welcome the benchmark's probe")

    def _send(self, message: ToSource) -> None:
        if not self._outgoing.send(self._route, message):
            raise HelperFailed("a message of the benchmark's probe cannot be sent")

    def _await(self, kind: type[Answer]) -> Answer:
        answer = self._receive(time.monotonic() + ANSWER_S)
        if not isinstance(answer, kind):
            raise HelperFailed(f"the source answers {answer}, expected {kind.__name__}")
        return answer

    def _receive(self, until: float) -> ToDestination:
        if not self._poller.poll(max(math.ceil((until - time.monotonic()) * 1000), 0)):
            raise HelperFailed("the source does not answer the benchmark's probe")
        received = self._outgoing.receive()
        if received is None or received[1][0] != PROTOCOL:
            raise HelperFailed("the source answers in another protocol")
        return decode_to_destination(received[1][1])
