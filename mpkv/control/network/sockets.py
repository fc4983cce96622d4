"""The ZeroMQ socket that connects to all peers, and what it shares with the one that peers
connect to.

Both are ROUTERs. Nothing here blocks: what cannot be sent now is not sent. Each has an
I/O thread of its own.
"""

import errno
import itertools
import logging
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

import zmq

from mpkv.control.network.wire import PROTOCOL, ToDestination, ToSource, encode, max_message

log = logging.getLogger("mpkv.control")

# Per connection: messages that wait to be sent, and answers that wait to be taken.
SEND_QUEUE = 512
ANSWER_QUEUE = 64
RECONNECT_MS = 50
LONGEST_RECONNECT_MS = 500
# Where packets get lost the next try, whose name is looked up anew, is worth more than patience.
CONNECT_MS = 500
ZMTP_HANDSHAKE_MS = 3000

_MONITORED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
_MONITOR_EVENT = struct.Struct("=HI")


class Connection(NamedTuple):
    """What libzmq says of an outgoing connection: lost, or not even made."""

    endpoint: str
    lost: bool


class Outgoing:
    """The one socket that all peers are reached through.

    A route names one connection and is never used twice: libzmq aborts the process when
    a routing id is taken, and what was meant for an old connection must not reach a new.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", key_size: int) -> None:
        self._routes = itertools.count(1)
        self.socket = context.socket(zmq.ROUTER)
        configure(self.socket, max_message(key_size))
        self.socket.setsockopt(zmq.AFFINITY, 2)
        self.socket.setsockopt(zmq.RCVHWM, ANSWER_QUEUE)
        self.socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, LONGEST_RECONNECT_MS)
        self.socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
        self.socket.monitor("inproc://outgoing", _MONITORED)
        self.monitor = context.socket(zmq.PAIR)
        self.monitor.setsockopt(zmq.LINGER, 0)
        self.monitor.connect("inproc://outgoing")

    def connect(self, endpoint: str) -> bytes:
        """Connect to a numeric endpoint, even if there are connections to it already."""
        route = b"peer-%d" % next(self._routes)
        self.socket.setsockopt(zmq.CONNECT_ROUTING_ID, route)
        # With it on, libzmq would give IPv4 endpoints another spelling in its events.
        self.socket.setsockopt(zmq.IPV6, endpoint.startswith("["))
        try:
            self.socket.connect(f"tcp://{endpoint}")
        except zmq.ZMQError as error:
            raise OSError(error.errno or errno.EINVAL, os.strerror(error.errno or 0)) from None
        return route

    def disconnect(self, endpoint: str) -> None:
        """End every connection to `endpoint`."""
        try:
            self.socket.disconnect(f"tcp://{endpoint}")
        except zmq.ZMQError as error:
            log.debug("disconnecting %s: %s", endpoint, error)

    def send(self, route: bytes, message: ToSource) -> bool:
        return send(self.socket, route, message)

    def receive(self) -> tuple[bytes, list[bytes]] | None:
        return receive(self.socket)

    def changes(self) -> Iterator[Connection]:
        """What became of connections since the last call, in order."""
        for event in events(self.monitor):
            if event.kind != zmq.EVENT_CONNECT_RETRIED:
                yield Connection(event.endpoint, lost=event.kind == zmq.EVENT_DISCONNECTED)


class Event(NamedTuple):
    kind: int
    value: int
    endpoint: str


def events(monitor: "zmq.Socket[bytes]") -> Iterator[Event]:
    """What libzmq reports of a socket's connections."""
    while True:
        try:
            event, endpoint = monitor.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        kind, value = _MONITOR_EVENT.unpack(event)
        yield Event(kind, value, endpoint.decode(errors="replace").removeprefix("tcp://"))


def configure(socket: "zmq.Socket[bytes]", longest: int) -> None:
    """What both sockets need; a frame longer than `longest` costs its sender the connection."""
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.MAXMSGSIZE, longest)
    socket.setsockopt(zmq.SNDHWM, SEND_QUEUE)
    socket.setsockopt(zmq.HANDSHAKE_IVL, ZMTP_HANDSHAKE_MS)
    # A machine that vanishes says nothing; TCP finds out and the connection is freed.
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 10)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)


def send(socket: "zmq.Socket[bytes]", route: bytes, message: ToSource | ToDestination) -> bool:
    try:
        socket.send_multipart([route, PROTOCOL, encode(message)], zmq.NOBLOCK)
    except zmq.ZMQError:
        # No such connection any more, or it has more queued than it may.
        return False
    return True


def receive(socket: "zmq.Socket[bytes]") -> tuple[bytes, list[bytes]] | None:
    """The next message; one for which memory is short comes without its frames."""
    try:
        route, *frames = socket.recv_multipart(zmq.NOBLOCK)
    except zmq.ZMQError:
        return None
    except MemoryError:
        while socket.getsockopt(zmq.RCVMORE):
            socket.recv(zmq.NOBLOCK, copy=False)
        return b"", []
    return route, frames
