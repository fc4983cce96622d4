"""New initiators from the supervisor: a message with the descriptors of their rings."""

import contextlib
import os
import signal
import socket

import msgspec
import zmq

from mpkv.errors import HelperFailed, MpkvError
from mpkv.memory import Consumer, Ring
from mpkv.messages import InitiatorUp
from mpkv.processes.health import pid_of

DESCRIPTORS = 4


class InitiatorProcess:
    """The rings and the pidfd of one initiator; owns them all once it is made."""

    def __init__(self, generation: int, fds: list[int], wake_fd: int, poller: zmq.Poller) -> None:
        """`fds`: ring to it, eventfd that wakes it, ring from it, its pidfd. They stay the
        caller's if this raises."""
        to_ring_fd, self._its_wake_fd, from_ring_fd, self.pidfd = fds
        self.generation = generation
        self.closed = False
        self._poller = poller
        self._to_ring = Ring.attach(to_ring_fd)
        self._from_ring = Ring.attach(from_ring_fd)
        self._producer = self._to_ring.producer(self._its_wake_fd)
        self.consumer: Consumer = self._from_ring.consumer(wake_fd)
        # The rings have descriptors of their own.
        os.close(to_ring_fd)
        os.close(from_ring_fd)
        poller.register(self.pidfd, zmq.POLLIN)

    @property
    def pid(self) -> int:
        return pid_of(self.pidfd)

    def push(self, record: bytes) -> bool:
        return self._producer.push(record)

    def fits(self, record: bytes) -> bool:
        return len(record) <= self._to_ring.max_record

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._poller.unregister(self.pidfd)
            self._to_ring.close()
            self._from_ring.close()
            os.close(self._its_wake_fd)
            os.close(self.pidfd)


class SupervisorLink:
    """Receives `InitiatorUp`; at the end of the stream it falls silent."""

    def __init__(self, fd: int, wake_fd: int, poller: zmq.Poller) -> None:
        self.fd = fd
        self._socket = socket.socket(fileno=fd)
        self._wake_fd = wake_fd
        self._poller = poller
        poller.register(fd, zmq.POLLIN)

    def receive(self) -> InitiatorProcess | None:
        """The next new initiator, None if there is none.

        Raises HelperFailed if it cannot be used: nobody would announce it again, and only the
        supervisor, which replaces a control plane that ends, can bring another.
        """
        try:
            body, fds, _, _ = socket.recv_fds(
                self._socket,
                4096,
                DESCRIPTORS,
                socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC,
            )
        except BlockingIOError:
            return None
        if not body:
            # The engine is going, or will say so by its pidfd.
            self._poller.unregister(self.fd)
            return None
        try:
            message = msgspec.msgpack.decode(body, type=InitiatorUp)
            if len(fds) != DESCRIPTORS:
                raise MpkvError(f"{len(fds)} descriptors, expected {DESCRIPTORS}")
            return InitiatorProcess(message.generation, fds, self._wake_fd, self._poller)
        except (msgspec.MsgspecError, MpkvError, OSError) as error:
            for fd in fds:
                os.close(fd)
            raise HelperFailed(
                f"the supervisor announced an initiator that cannot be used: {error}"
            ) from error
