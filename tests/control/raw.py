"""Peers played by hand, and a network that can be cut."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import TypeVar

import zmq

from mpkv.control.network.wire import (
    PROTOCOL,
    Hello,
    ToDestination,
    ToSource,
    decode_to_destination,
    decode_to_source,
    encode,
)
from tests.control.common import COMPATIBILITY, CONTENT, KEY_SIZE, LIMIT_S, free_port


class RawPeer:
    """Speaks the wire by hand, as a destination: one connection to a control plane."""

    def __init__(self, address: str, instance: str = "raw") -> None:
        self.instance = instance
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, 64)
        self.socket.connect(f"tcp://{address}")

    def send(self, message: ToSource) -> None:
        self.send_frames([PROTOCOL, encode(message)])

    def send_frames(self, frames: list[bytes]) -> None:
        self.socket.send_multipart(frames)

    def receive(self, limit_s: float = LIMIT_S) -> ToDestination:
        assert self.socket.poll(int(limit_s * 1000)), "no answer"
        protocol, body = self.socket.recv_multipart()
        assert protocol == PROTOCOL
        return decode_to_destination(body)

    def ask(self, message: ToSource) -> ToDestination:
        self.send(message)
        return self.receive()

    def hello(self, address: str = "127.0.0.1:1") -> ToDestination:
        return self.ask(Hello(self.instance, "raw", address, COMPATIBILITY, CONTENT))

    def close(self) -> None:
        self._context.destroy(linger=0)


class RawSource:
    """Speaks the wire by hand, as a source: a port that real destinations connect to."""

    def __init__(self, port: int | None = None) -> None:
        self.port = port if port is not None else free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(f"tcp://{self.address}")

    def receive(self, kind: type[ToSource], limit_s: float = LIMIT_S) -> tuple[bytes, ToSource]:
        """The next message of one kind; others on the way are passed over."""
        until = time.monotonic() + limit_s
        while True:
            left = until - time.monotonic()
            assert self.socket.poll(int(max(left, 0) * 1000)), f"no {kind.__name__}"
            route, _, body = self.socket.recv_multipart()
            message = decode_to_source(body, KEY_SIZE)
            if isinstance(message, kind):
                return route, message

    def send(self, route: bytes, message: ToDestination) -> None:
        self.socket.send_multipart([route, PROTOCOL, encode(message)])

    def close(self) -> None:
        self._context.destroy(linger=0)


Peer = TypeVar("Peer", RawPeer, RawSource)


@contextlib.contextmanager
def closing(peer: Peer) -> Iterator[Peer]:
    try:
        yield peer
    finally:
        peer.close()


class Proxy:
    """A TCP port in front of another that can cut every connection through it."""

    def __init__(self, port: int, at: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(at)
        self.port: int = self._listener.getsockname()[1]
        self.address = f"{at[0]}:{self.port}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                theirs, _ = self._listener.accept()
                ours = socket.create_connection(self._target)
            except OSError:
                return
            self._sockets += [theirs, ours]
            for source, sink in ((theirs, ours), (ours, theirs)):
                thread = threading.Thread(target=_copy, args=(source, sink))
                self._threads.append(thread)
                thread.start()

    def cut(self) -> None:
        while self._sockets:
            with contextlib.suppress(OSError):
                self._sockets.pop().shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(LIMIT_S)
        self.cut()
        for thread in self._threads:
            thread.join(LIMIT_S)
        self._listener.close()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    source.close()


def open_zmtp(port: int, limit_s: float = 10.0) -> socket.socket:
    """ZMTP by hand: libzmq's own sender would hold frames back to the end."""
    connection = socket.create_connection(("127.0.0.1", port), limit_s)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
    connection.sendall(greeting + bytes([4, len(ready)]) + ready)
    return connection
