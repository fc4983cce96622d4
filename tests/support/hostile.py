"""Sources played by the test: they answer as sources do, and grant whatever is asked for."""

import contextlib
import struct
import threading
from collections.abc import Callable, Iterator

import msgspec
import zmq

from mpkv.control.network.wire import (
    PROTOCOL,
    Ask,
    Confirm,
    Grant,
    Hello,
    Loss,
    NotConfirmed,
    Ping,
    Pong,
    Welcome,
    decode_to_destination,
    decode_to_source,
    encode,
)
from tests.support.standin import COMPATIBILITY, CONTENT, KEY_SIZE, StandIn, free_port


def welcome_of(engine: StandIn) -> Welcome:
    compatibility = msgspec.structs.replace(COMPATIBILITY, block_bytes=engine.block_bytes)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket = context.socket(zmq.DEALER)
        socket.connect(f"tcp://{engine.address}")
        hello = Hello("probe", "probe", "127.0.0.1:1", compatibility, CONTENT)
        socket.send_multipart([PROTOCOL, encode(hello)])
        assert socket.poll(5000)
        answer = decode_to_destination(socket.recv_multipart()[1])
    finally:
        context.destroy(linger=0)
    assert isinstance(answer, Welcome)
    return answer


def renamed(welcome: Welcome, instance: str) -> Welcome:
    """The same tier under another name, in the metadata too."""
    agent = f"{instance}.target"
    before, name = welcome.metadata, welcome.agent.encode()
    at = before.index(name)
    metadata = before[: at - 8] + len(agent).to_bytes(8, "little") + agent.encode()
    metadata += before[at + len(name) :]
    return msgspec.structs.replace(
        welcome, instance=instance, node=instance, agent=agent, metadata=metadata
    )


@contextlib.contextmanager
def hostile_source(welcome: Welcome) -> Iterator[str]:
    """Answers as a source does, and grants whatever it is asked for."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    port = free_port()
    socket.bind(f"tcp://127.0.0.1:{port}")
    stop = threading.Event()
    thread = threading.Thread(target=_serve, args=(socket, welcome, stop.is_set))
    thread.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        stop.set()
        thread.join(10.0)
        context.destroy(linger=0)


def _serve(socket: "zmq.Socket[bytes]", welcome: Welcome, stopped: Callable[[], bool]) -> None:
    while not stopped():
        if not socket.poll(50):
            continue
        route, _, body = socket.recv_multipart()
        message = decode_to_source(body, KEY_SIZE)
        answer: Welcome | Pong | Grant | NotConfirmed
        if isinstance(message, Hello):
            answer = welcome
        elif isinstance(message, Ping):
            answer = Pong(welcome.instance, message.number)
        elif isinstance(message, Ask):
            runs, blocks = struct.pack("II", 0, message.limit), bytes(4 * message.limit)
            answer = Grant(message.ask, 1, runs, blocks, CONTENT)
        elif isinstance(message, Confirm):
            answer = NotConfirmed(message.ask, message.lease, Loss.EXPIRED)
        else:
            continue
        socket.send_multipart([route, PROTOCOL, encode(answer)])
