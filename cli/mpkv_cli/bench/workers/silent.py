"""Peers that greet, answer pings and never answer an ask: whoever pulls from them waits."""

import threading

import msgspec
import zmq

from mpkv.control.network.wire import PROTOCOL, Hello, Ping, Pong, Welcome, decode_to_source, encode
from mpkv_cli.bench.probe import Probe
from mpkv_cli.bench.standin import KEY_SIZE
from mpkv_cli.bench.worker import serve

Socket = zmq.Socket[bytes]


def open_peers(like: str, block_bytes: int, count: int) -> list[str]:
    """Start `count` peers and return their addresses; they show the memory of the engine at
    `like` as their own."""
    with Probe(like, block_bytes) as probe:
        welcome = probe.welcome
    context: zmq.Context[Socket] = zmq.Context()
    peers: dict[Socket, Welcome] = {}
    addresses = []
    for number in range(count):
        socket = context.socket(zmq.ROUTER)
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        addresses.append(f"127.0.0.1:{port}")
        peers[socket] = msgspec.structs.replace(
            welcome, instance=f"silent-{number}", node=f"silent-{number}"
        )
    threading.Thread(target=_answer, args=(peers,), daemon=True).start()
    return addresses


def _answer(peers: dict[Socket, Welcome]) -> None:
    poller = zmq.Poller()
    for socket in peers:
        poller.register(socket, zmq.POLLIN)
    while True:
        for socket, _ in poller.poll():
            route, _, body = socket.recv_multipart()
            message = decode_to_source(body, KEY_SIZE)
            welcome = peers[socket]
            if isinstance(message, Hello):
                socket.send_multipart([route, PROTOCOL, encode(welcome)])
            elif isinstance(message, Ping):
                pong = Pong(welcome.instance, message.number)
                socket.send_multipart([route, PROTOCOL, encode(pong)])


if __name__ == "__main__":
    serve({"open_peers": open_peers})
