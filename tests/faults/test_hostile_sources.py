"""A source whose words end the initiator; what everybody else gets meanwhile."""

import contextlib
import struct
import threading
from collections.abc import Callable, Iterator

import msgspec
import zmq

from mpkv.control.wire import (
    PROTOCOL,
    Ask,
    Grant,
    Hello,
    Ping,
    Pong,
    Welcome,
    decode_to_destination,
    decode_to_source,
    encode,
)
from tests.faults.conftest import MakeStandIn
from tests.support.standin import COMPATIBILITY, KEY_SIZE, StandIn, free_port, make_keys


def test_metadata_that_ends_the_initiator_costs_its_sender_only(standin: MakeStandIn) -> None:
    source, destination = standin("source"), standin("destination", deadline_s=5.0)
    keys = make_keys("k", 60)
    source.store(keys)
    destination.pull_until(source, keys[:1])
    real = welcome_of(standin("bystander"))
    # The first byte of UCX's own address, its version: UCX aborts at one it does not know.
    damaged = bytearray(real.metadata)
    damaged[real.metadata.index(b"|c") + 10] = 0xFF
    evil = msgspec.structs.replace(real, instance="evil", node="evil", metadata=bytes(damaged))
    initiators = set()
    with hostile_source(evil) as address:
        for number in range(8):
            initiators.add(destination.helper("initiator").pid)
            destination.start_pull(f"evil {number}", address, make_keys(f"e{number}", 2))
            wanted = keys[number * 4 : number * 4 + 4]
            destination.pull_until(source, wanted, limit_s=10.0)
            destination.wait(f"evil {number}")
            assert not any(destination.holds(key) for key in make_keys(f"e{number}", 2))
            destination.pulls.finished(f"evil {number}")
    assert any("an initiator died of it" in detail for detail in destination.meter.details)
    # Twice, and then never again within the test.
    assert 1 < len(initiators | {destination.helper("initiator").pid}) <= 3
    destination.wait_idle()


def welcome_of(engine: StandIn) -> Welcome:
    compatibility = msgspec.structs.replace(COMPATIBILITY, block_bytes=engine.block_bytes)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket = context.socket(zmq.DEALER)
        socket.connect(f"tcp://{engine.address}")
        hello = Hello("probe", "probe", "127.0.0.1:1", compatibility, 0)
        socket.send_multipart([PROTOCOL, encode(hello)])
        assert socket.poll(5000)
        answer = decode_to_destination(socket.recv_multipart()[1])
    finally:
        context.destroy(linger=0)
    assert isinstance(answer, Welcome)
    return answer


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
        answer: Welcome | Pong | Grant
        if isinstance(message, Hello):
            answer = welcome
        elif isinstance(message, Ping):
            answer = Pong(welcome.instance, message.number)
        elif isinstance(message, Ask):
            runs, blocks = struct.pack("II", 0, message.limit), bytes(4 * message.limit)
            answer = Grant(message.ask, 1, runs, blocks, 0)
        else:
            continue
        socket.send_multipart([route, PROTOCOL, encode(answer)])
