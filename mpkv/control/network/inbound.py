"""The ZeroMQ socket that peers connect to, and how much they may keep of it."""

import errno
import logging
import os

import zmq

from mpkv.control.network.addresses import is_ipv6, join_address
from mpkv.control.network.gate import BACKLOG, Gate
from mpkv.control.network.limits import max_connections
from mpkv.control.network.sockets import configure, events, receive, send
from mpkv.control.network.wire import ToDestination, max_message

log = logging.getLogger("mpkv.control")

# Per connection, of the longest messages: bounds what a flood keeps in memory.
QUEUE = 4
FIRST_BIND_BACKOFF_S = 0.2
LONGEST_BIND_BACKOFF_S = 5.0
# After our own socket has held the port.
REBIND_S = 0.02
# Connections that do not even answer libzmq are ended.
HEARTBEAT_MS = 10_000
HEARTBEAT_TIMEOUT_MS = 30_000

_MONITORED = (
    zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_ACCEPT_FAILED
)


class Inbound:
    """Where peers reach this engine; binds again and again while the port is taken."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        listen: str,
        port: int,
        key_size: int,
        poller: zmq.Poller,
    ) -> None:
        self._context = context
        self._ipv6 = is_ipv6(listen)
        self._endpoint = f"tcp://{join_address(listen, port)}"
        self._longest = max_message(key_size)
        self._poller = poller
        self._retry_at = 0.0
        self._backoff_s = FIRST_BIND_BACKOFF_S
        self._complained = False
        self._lives = 0
        self._open()

    def _open(self) -> None:
        self._bound = False
        self._gate: Gate | None = None
        self._lives += 1
        socket = self.socket = self._context.socket(zmq.ROUTER)
        configure(socket, self._longest)
        socket.setsockopt(zmq.AFFINITY, 1)
        socket.setsockopt(zmq.RCVHWM, QUEUE)
        socket.setsockopt(zmq.IPV6, self._ipv6)
        socket.setsockopt(zmq.BACKLOG, BACKLOG)
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        socket.monitor(f"inproc://inbound-{self._lives}", _MONITORED)
        self.monitor = self._context.socket(zmq.PAIR)
        self.monitor.setsockopt(zmq.LINGER, 0)
        self.monitor.connect(f"inproc://inbound-{self._lives}")
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(self.monitor, zmq.POLLIN)

    def renew(self) -> None:
        """Drop every connection and all that is queued; peers connect again by themselves."""
        for old in (self.socket, self.monitor):
            self._poller.unregister(old)
        if self._gate is not None:
            self._gate.close()
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=0)
        self._backoff_s, self._retry_at, self._complained = REBIND_S, 0.0, True
        self._open()

    def tick(self, now: float) -> float | None:
        """Bind if that is still to be done; return when to try again."""
        if self._bound:
            return None
        if now < self._retry_at:
            return self._retry_at
        try:
            self.socket.bind(self._endpoint)
        except zmq.ZMQError as error:
            if not self._complained:
                self._complained = True
                log.error("%s", _cannot_listen(self._endpoint, error))
            self._retry_at = now + self._backoff_s
            self._backoff_s = min(self._backoff_s * 2, LONGEST_BIND_BACKOFF_S)
            return self._retry_at
        self._bound = True
        log.info("listening on %s", self._endpoint)
        return None

    def watch(self) -> bool:
        """Take what libzmq says of connections; keep them within bounds. True if one ended."""
        ended = False
        for event in events(self.monitor):
            if event.kind == zmq.EVENT_LISTENING:
                self._gate = Gate(event.value)
            elif self._gate is None:
                continue
            elif event.kind == zmq.EVENT_ACCEPTED:
                if self._gate.accepted(event.value):
                    log.warning(
                        "%d connections are open; no more are taken until some end",
                        max_connections(),
                    )
            elif event.kind == zmq.EVENT_ACCEPT_FAILED:
                if event.value in (errno.EMFILE, errno.ENFILE):
                    self._gate.exhausted()
            else:
                ended = True
                self._gate.ended(event.value)
        return ended

    def receive(self) -> tuple[bytes, list[bytes]] | None:
        return receive(self.socket)

    def send(self, route: bytes, message: ToDestination) -> bool:
        return send(self.socket, route, message)


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
