"""The far end of a bare ZeroMQ exchange: a ROUTER that answers with bytes of a given length."""

import threading

import zmq

from mpkv_cli.bench.worker import serve

_answer = b""


def listen() -> int:
    """Start answering on a port of its own choice, and return it."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    port: int = socket.bind_to_random_port("tcp://127.0.0.1")
    threading.Thread(target=_echo, args=(socket,), daemon=True).start()
    return port


def answer_with(length: int) -> None:
    global _answer
    _answer = bytes(length)


def _echo(socket: "zmq.Socket[bytes]") -> None:
    while True:
        route, _ = socket.recv_multipart()
        socket.send_multipart([route, _answer])


if __name__ == "__main__":
    serve({"listen": listen, "answer_with": answer_with})
