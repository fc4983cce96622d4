"""The two ZeroMQ sockets: one that peers connect to, one that connects to all peers.

Both are ROUTERs. Nothing here blocks: what cannot be sent now is not sent. Each has an
I/O thread of its own, so that a slow name lookup for one outgoing connection does not
hold up what peers ask of us.
"""

import errno
import itertools
import logging
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

import zmq

from mpkv.control.wire import PROTOCOL, ToDestination, ToSource, encode, max_message

log = logging.getLogger("mpkv.control")

# Per connection, of the longest messages: bounds what a flood keeps in memory.
INBOUND_QUEUE = 16
OUTBOUND_QUEUE = 512
FIRST_BIND_BACKOFF_S = 0.2
LONGEST_BIND_BACKOFF_S = 5.0
RECONNECT_MS = 50
LONGEST_RECONNECT_MS = 500
ZMTP_HANDSHAKE_MS = 3000

_MONITORED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
_MONITOR_EVENT = struct.Struct("=HI")


class Connection(NamedTuple):
    """What libzmq says of an outgoing connection: lost, or not even made."""

    address: str
    lost: bool


class Inbound:
    """Where peers reach this engine; binds again and again while the port is taken."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", listen: str, port: int, key_size: int
    ) -> None:
        self.bound = False
        self._endpoint = f"tcp://{listen}:{port}"
        self._backoff_s = FIRST_BIND_BACKOFF_S
        self._retry_at = 0.0
        self.socket = context.socket(zmq.ROUTER)
        _configure(self.socket, key_size)
        self.socket.setsockopt(zmq.AFFINITY, 1)
        self.socket.setsockopt(zmq.RCVHWM, INBOUND_QUEUE)
        self.socket.setsockopt(zmq.SNDHWM, OUTBOUND_QUEUE)

    def tick(self, now: float) -> float | None:
        """Bind if that is still to be done; return when to try again."""
        if self.bound:
            return None
        if now < self._retry_at:
            return self._retry_at
        try:
            self.socket.bind(self._endpoint)
        except zmq.ZMQError as error:
            if self._backoff_s == FIRST_BIND_BACKOFF_S:
                log.error("%s", _cannot_listen(self._endpoint, error))
            self._retry_at = now + self._backoff_s
            self._backoff_s = min(self._backoff_s * 2, LONGEST_BIND_BACKOFF_S)
            return self._retry_at
        self.bound = True
        log.info("listening on %s", self._endpoint)
        return None

    def receive(self) -> tuple[bytes, list[bytes]] | None:
        return _receive(self.socket)

    def send(self, route: bytes, message: ToDestination) -> bool:
        return _send(self.socket, route, message)


class Outgoing:
    """The one socket that all peers are reached through.

    A route names one connection and is never used twice: libzmq aborts the process when
    a routing id is taken, and what was meant for an old connection must not reach a new.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", key_size: int) -> None:
        self._routes = itertools.count(1)
        self.socket = context.socket(zmq.ROUTER)
        _configure(self.socket, key_size)
        self.socket.setsockopt(zmq.AFFINITY, 2)
        self.socket.setsockopt(zmq.RCVHWM, OUTBOUND_QUEUE)
        self.socket.setsockopt(zmq.SNDHWM, OUTBOUND_QUEUE)
        self.socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, LONGEST_RECONNECT_MS)
        self.socket.monitor("inproc://outgoing", _MONITORED)
        self.monitor = context.socket(zmq.PAIR)
        self.monitor.setsockopt(zmq.LINGER, 0)
        self.monitor.connect("inproc://outgoing")

    def connect(self, address: str) -> bytes:
        route = b"peer-%d" % next(self._routes)
        self.socket.setsockopt(zmq.CONNECT_ROUTING_ID, route)
        try:
            self.socket.connect(f"tcp://{address}")
        except zmq.ZMQError as error:
            raise OSError(error.errno or errno.EINVAL, os.strerror(error.errno or 0)) from None
        return route

    def disconnect(self, address: str, route: bytes) -> None:
        try:
            self.socket.disconnect(f"tcp://{address}")
        except zmq.ZMQError as error:
            log.debug("disconnecting %s: %s", address, error)

    def send(self, route: bytes, message: ToSource) -> bool:
        return _send(self.socket, route, message)

    def receive(self) -> tuple[bytes, list[bytes]] | None:
        return _receive(self.socket)

    def changes(self) -> Iterator[Connection]:
        """What became of connections since the last call, in order.

        An address given by name is not recognised: libzmq names the resolved one.
        """
        while True:
            try:
                event, endpoint = self.monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            number, _ = _MONITOR_EVENT.unpack(event)
            if number != zmq.EVENT_CONNECT_RETRIED:
                address = endpoint.decode(errors="replace").removeprefix("tcp://")
                yield Connection(address, lost=number == zmq.EVENT_DISCONNECTED)


def _configure(socket: "zmq.Socket[bytes]", key_size: int) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.MAXMSGSIZE, max_message(key_size))
    socket.setsockopt(zmq.HANDSHAKE_IVL, ZMTP_HANDSHAKE_MS)
    # A machine that vanishes says nothing; TCP finds out and the connection is freed.
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 10)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)


def _send(socket: "zmq.Socket[bytes]", route: bytes, message: ToSource | ToDestination) -> bool:
    try:
        socket.send_multipart([route, PROTOCOL, encode(message)], zmq.NOBLOCK)
    except zmq.ZMQError:
        # No such connection any more, or it has more queued than it may.
        return False
    return True


def _receive(socket: "zmq.Socket[bytes]") -> tuple[bytes, list[bytes]] | None:
    try:
        route, *frames = socket.recv_multipart(zmq.NOBLOCK)
    except zmq.ZMQError:
        return None
    return route, frames


def _cannot_listen(endpoint: str, error: zmq.ZMQError) -> str:
    remedy = "check `listen` and `port` of this node in the cluster file"
    if error.errno == errno.EADDRINUSE:
        remedy = (
            "stop the process that uses the port, or give this node another `port` in the "
            "cluster file (data-parallel rank r listens on port + r)"
        )
    return (
        f"cannot listen on {endpoint.removeprefix('tcp://')}: {os.strerror(error.errno or 0)}. "
        f"Peers cannot pull from this engine until it can; trying again. To mend it, {remedy}"
    )
