"""An initiator played by the test, on real rings and with a real pidfd."""

import os
import socket
import subprocess

import msgspec

from mpkv.memory import Ring
from mpkv.messages import (
    AddPeer,
    FromRegistration,
    InitiatorReady,
    InitiatorUp,
    PeerAdded,
    PeerFailed,
    Read,
    ReadDone,
    ReadFailed,
    RemovePeer,
    ToInitiator,
)
from tests.control.common import LIMIT_S

_encode = msgspec.msgpack.encode
_to_initiator = msgspec.msgpack.Decoder(ToInitiator)


class Sleeper:
    """A child that only lends its pidfd."""

    def __init__(self) -> None:
        self._popen = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
        self.pidfd = os.pidfd_open(self._popen.pid)

    def alive(self) -> bool:
        return self._popen.poll() is None

    def end(self) -> None:
        self._popen.kill()
        self._popen.wait(LIMIT_S)


class FakeInitiator:
    """Plays an initiator: adds every peer at once, and ends READs when told to."""

    def __init__(
        self, supervisor: socket.socket, control_wake: int, generation: int, *, automatic: bool
    ) -> None:
        """Announces itself to the control plane on `supervisor`, as the supervisor does."""
        self.generation = generation
        self.process = Sleeper()
        self.automatic = automatic
        self.peers: dict[str, AddPeer] = {}
        self.added_instances: list[str] = []
        self.removed: list[str] = []
        # Whether registering a peer ends at all, and whether it ends well.
        self.adds = True
        self.fails = False
        self.reads: list[Read] = []
        self._ended: set[int] = set()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._to = Ring.create(1 << 20, "to-initiator")
        self._from = Ring.create(1 << 20, "from-initiator")
        self._consumer = self._to.consumer(-1)
        self._producer = self._from.producer(control_wake)
        socket.send_fds(
            supervisor,
            [_encode(InitiatorUp(generation))],
            [self._to.fd, self._wake, self._from.fd, self.process.pidfd],
        )
        self.say(InitiatorReady(f"initiator{generation}"))

    def say(self, message: FromRegistration) -> None:
        assert self._producer.push(_encode(message))

    def pump(self) -> None:
        while (record := self._consumer.pop()) is not None:
            message = _to_initiator.decode(record)
            if isinstance(message, AddPeer):
                self._add(message)
            elif isinstance(message, RemovePeer):
                self.peers.pop(message.instance, None)
                self.removed.append(message.instance)
            else:
                assert message.instance in self.peers, "a READ from a peer that was not added"
                self.reads.append(message)
                if self.automatic:
                    self.done(message)

    def _add(self, peer: AddPeer) -> None:
        if self.fails:
            self.say(PeerFailed(peer.instance, "NIXL_ERR_BACKEND"))
        elif self.adds:
            self.peers[peer.instance] = peer
            self.added_instances.append(peer.instance)
            self.say(PeerAdded(peer.instance, 0.0))

    def done(self, read: Read) -> None:
        self._ended.add(read.read)
        self.say(ReadDone(read.read, 0.0))

    def unfinished(self) -> list[Read]:
        self.pump()
        return [read for read in self.reads if read.read not in self._ended]

    def failed(self, read: Read, *, posted: bool) -> None:
        self.say(ReadFailed(read.read, "NIXL_ERR_BACKEND", posted))

    def close(self) -> None:
        self.process.end()
        os.close(self._wake)
        os.close(self.process.pidfd)
        self._to.close()
        self._from.close()
