"""Real control planes as the supervisor would spawn them, and what stands around them.

Real: the processes, ZeroMQ, rings, ledgers. Played by the test: the engine, the target (a
TargetReady record and a sleeping child for its pidfd) and the initiator (`FakeInitiator`,
on real rings, with a sleeping child for its pidfd).
"""

import array
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil
import zmq

from mpkv.control.wire import (
    PROTOCOL,
    Hello,
    ToDestination,
    ToSource,
    decode_to_destination,
    decode_to_source,
    encode,
)
from mpkv.memory import FILLING, LANDING, Ledger, Ring, create_segment
from mpkv.messages import (
    AddPeer,
    CancelPull,
    Compatibility,
    ControlStart,
    FromRegistration,
    InitiatorReady,
    InitiatorUp,
    KeyGroup,
    MissReason,
    PeerAdded,
    PeerFailed,
    Pull,
    Pulled,
    PullFailed,
    Read,
    ReadDone,
    ReadFailed,
    RemovePeer,
    RingEnds,
    SlotsReturned,
    TargetReady,
    Tier,
    ToEngine,
    ToInitiator,
)

ROOT = Path(__file__).resolve().parents[2]
KEY_SIZE = 36
BLOCK_BYTES = 4096
LIMIT_S = 20.0

COMPATIBILITY = Compatibility(
    model="m",
    revision="r",
    dtype="bfloat16",
    cache_dtype="auto",
    kv_layout="LBHNC",
    tokens_per_block=(16,),
    blocks_per_chunk=1,
    block_bytes=BLOCK_BYTES,
    tensor_parallel=1,
    pipeline_parallel=1,
    prefill_context_parallel=1,
    decode_context_parallel=1,
    hash_algorithm="sha256_cbor",
    hash_seed="0",
    key_size=KEY_SIZE,
)

T = TypeVar("T")

_encode = msgspec.msgpack.encode
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_to_initiator = msgspec.msgpack.Decoder(ToInitiator)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def keys(name: str, count: int, group: int = 0) -> list[bytes]:
    return [f"{name}/{i}".encode().ljust(32, b".") + group.to_bytes(4, "big") for i in range(count)]


def u32(packed: bytes) -> list[int]:
    return list(array.array("I", packed))


def wait_for(what: Callable[[], T], why: str, limit_s: float = LIMIT_S) -> T:
    """Call `what` until it returns something true."""
    until = time.monotonic() + limit_s
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < until, f"waited {limit_s:g} s for {why}"
        time.sleep(0.002)


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

    def __init__(self, plane: "Plane", generation: int, *, automatic: bool) -> None:
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
        self._producer = self._from.producer(plane.wake)
        socket.send_fds(
            plane.supervisor,
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


class Plane:
    """One control plane with everything around it. Use as a context manager."""

    def __init__(
        self,
        node: str,
        *,
        blocks: int = 256,
        port: int | None = None,
        peers: tuple[str, ...] = (),
        compatibility: Compatibility = COMPATIBILITY,
        deadline_s: float = 10.0,
        instance: str = "",
        target: bool = True,
        initiator: bool = True,
        automatic: bool = True,
        trace_dir: str = "",
        ring_bytes: int = 1 << 22,
        tier_blocks: int | None = None,
    ) -> None:
        self.node = node
        self.instance = instance or f"{node}-{os.urandom(4).hex()}"
        self.port = port if port is not None else free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.deadline_s = deadline_s
        self.ledger = Ledger.create(blocks, KEY_SIZE)
        self.records: list[ToEngine] = []
        self.pulls = 0
        self._slots: dict[int, bytes] = {}
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.target_process = Sleeper()
        self.engine_process = Sleeper()
        self.supervisor, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._tier_fd = create_segment("tier", blocks * BLOCK_BYTES)
        self._rings = [Ring.create(ring_bytes, name) for name in ("in", "out", "target")]
        from_engine, to_engine, from_target = self._rings
        self._producer = from_engine.producer(self.wake)
        self._consumer = to_engine.consumer(-1)
        self._target = from_target.producer(self.wake)
        self._log = os.memfd_create("log", os.MFD_CLOEXEC)
        start = ControlStart(
            node=node,
            instance=self.instance,
            listen="127.0.0.1",
            port=self.port,
            advertise="127.0.0.1",
            peers=peers,
            compatibility=compatibility,
            tier=Tier(self._tier_fd, tier_blocks or blocks, BLOCK_BYTES),
            ledger_fd=self.ledger.fd,
            engine_pidfd=self.engine_process.pidfd,
            target_pidfd=self.target_process.pidfd,
            supervisor_fd=theirs.fileno(),
            wake_fd=self.wake,
            from_engine=RingEnds(from_engine.fd, self.wake),
            to_engine=RingEnds(to_engine.fd, -1),
            from_target=RingEnds(from_target.fd, self.wake),
            deadline_s=deadline_s,
            trace_dir=trace_dir,
        )
        with theirs:
            self.process = self._spawn(start, theirs.fileno())
        self.initiator: FakeInitiator | None = None
        self._initiators: list[FakeInitiator] = []
        self._has_target = target
        if target:
            self.target_ready()
        if initiator:
            self.new_initiator(automatic=automatic)

    def _spawn(self, start: ControlStart, channel: int) -> subprocess.Popen[bytes]:
        start_fd = os.memfd_create("start", os.MFD_CLOEXEC)
        os.write(start_fd, _encode(start))
        fds = [start_fd, self.ledger.fd, self.wake, channel, self._tier_fd]
        fds += [ring.fd for ring in self._rings]
        fds += [self.engine_process.pidfd, self.target_process.pidfd]
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "mpkv.control", "--start-fd", str(start_fd)],
                stdin=subprocess.DEVNULL,
                stderr=self._log,
                pass_fds=fds,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        finally:
            os.close(start_fd)

    def __enter__(self) -> "Plane":
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
        for initiator in self._initiators:
            initiator.close()
        for sleeper in (self.target_process, self.engine_process):
            sleeper.end()
            os.close(sleeper.pidfd)
        self.supervisor.close()
        os.close(self.wake)
        os.close(self._tier_fd)
        for ring in self._rings:
            ring.close()
        self.ledger.close()
        os.close(self._log)

    # --- what stands around it -----------------------------------------------------------

    def target_ready(self) -> None:
        assert self._target.push(_encode(TargetReady(f"{self.instance}.target", b"md", 4096)))

    def new_initiator(self, *, automatic: bool = True) -> FakeInitiator:
        """What the supervisor does after it has reaped the one before."""
        if self.initiator is not None:
            self.initiator.process.end()
        self.initiator = FakeInitiator(self, len(self._initiators) + 1, automatic=automatic)
        self._initiators.append(self.initiator)
        return self.initiator

    def wait_ready(self) -> None:
        """Until it listens and has what it was given at start."""

        def ready() -> bool:
            assert self.process.poll() is None, self.log()
            log = self.log()
            return (
                "listening on" in log
                and (not self._has_target or "the target" in log)
                and (self.initiator is None or "the initiator" in log)
            )

        wait_for(ready, f"{self.node} to be ready")

    def manual(self) -> FakeInitiator:
        """From now on the test ends READs itself."""
        assert self.initiator is not None
        self.initiator.automatic = False
        return self.initiator

    def automatic(self) -> None:
        assert self.initiator is not None
        self.initiator.automatic = True

    def finish(self, read: Read) -> None:
        assert self.initiator is not None
        self.initiator.done(read)

    def finish_reads(self) -> None:
        """End every READ that the test has not ended yet."""
        assert self.initiator is not None
        for read in self.initiator.unfinished():
            self.initiator.done(read)

    def finish_reads_until_end(self, pull: int) -> None:
        def ended() -> bool:
            self.finish_reads()
            return self.ended(pull)

        wait_for(ended, f"the end of pull {pull}")

    def warmed(self) -> list[str]:
        """The instances that have been registered so far."""
        self.pump()
        assert self.initiator is not None
        return self.initiator.added_instances

    def removed(self) -> list[str]:
        """The instances whose registration was dropped so far."""
        self.pump()
        assert self.initiator is not None
        return self.initiator.removed

    def initiator_lost(self, peer: str) -> bool:
        """Whether the control plane knows that there is no initiator."""
        answer = self.answer(self.pull(peer, keys("none", 1)))
        return isinstance(answer, PullFailed) and answer.reason is MissReason.HELPERS_DOWN

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)

    def log(self) -> str:
        size = os.fstat(self._log).st_size
        return os.pread(self._log, size, 0).decode()

    def count(self, name: str) -> int:
        return self.ledger.counters("control").read()[name]

    def resident_bytes(self) -> int:
        resident: int = psutil.Process(self.process.pid).memory_info().rss
        return resident

    def context_switches(self) -> int:
        """Of all of its threads: how often it went to sleep."""
        counted = 0
        for status in Path(f"/proc/{self.process.pid}/task").glob("*/status"):
            for line in status.read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    counted += int(line.split()[1])
        return counted

    def pins(self) -> int:
        return self.ledger.counts()["control_pins"]

    # --- the engine ------------------------------------------------------------------------

    def store(self, stored: list[bytes]) -> None:
        allocated = self.ledger.allocate(len(stored), FILLING)
        assert allocated is not None
        assert not any(self.ledger.publish(allocated[0], b"".join(stored), False))

    def push(self, message: Pull | CancelPull) -> None:
        assert self._producer.push(_encode(message))

    def pull(
        self,
        peer: str,
        wanted: list[bytes] | tuple[KeyGroup, ...],
        *,
        slots: int | None = None,
        deadline_s: float | None = None,
        epoch: int | None = None,
    ) -> int:
        """Start a pull and return its number."""
        groups = (KeyGroup(b"".join(wanted), 16, 0),) if isinstance(wanted, list) else wanted
        count = sum(len(group.keys) // KEY_SIZE for group in groups) if slots is None else slots
        allocated = self.ledger.allocate(count, LANDING)
        assert allocated is not None
        self.pulls += 1
        self._slots[self.pulls] = allocated[0]
        now = time.monotonic()
        deadline = now + (self.deadline_s if deadline_s is None else deadline_s)
        self.push(
            Pull(
                self.pulls,
                f"request-{self.pulls}",
                peer,
                groups,
                allocated[0],
                self.ledger.epoch if epoch is None else epoch,
                now,
                deadline,
            )
        )
        return self.pulls

    def pump(self) -> None:
        """Play the initiator and take what came for the engine."""
        if self.initiator is not None:
            self.initiator.pump()
        while (record := self._consumer.pop()) is not None:
            message = _to_engine.decode(record)
            self.records.append(message)
            slots = self._slots[message.pull]
            if not isinstance(message, PullFailed) or not message.slots_held:
                assert self.ledger.free(slots) == len(slots) // 8, "slots came back twice"

    def answers(self, pull: int) -> list[Pulled | PullFailed]:
        return [
            record
            for record in self.records
            if record.pull == pull and not isinstance(record, SlotsReturned)
        ]

    def ended(self, pull: int) -> bool:
        self.pump()
        return bool(self.answers(pull))

    def took_back(self, pull: int) -> bool:
        """Whether the slots of a failed pull have been returned by now."""
        self.pump()
        return SlotsReturned(pull) in self.records

    def wait_slots(self, pull: int) -> None:
        wait_for(lambda: self.took_back(pull), f"the slots of pull {pull}")

    def slots(self, pull: int) -> bytes:
        return self._slots[pull]

    def answer(self, pull: int, limit_s: float = LIMIT_S) -> Pulled | PullFailed:
        """Wait for the one answer of a pull."""

        def ended() -> list[Pulled | PullFailed]:
            self.pump()
            return self.answers(pull)

        found = wait_for(ended, f"an answer to pull {pull}; log:\n{self.log()}", limit_s)
        assert len(found) == 1
        return found[0]

    def fetch(self, peer: str, wanted: list[bytes]) -> list[int]:
        """Pull and return the indexes that arrived; empty for a miss."""
        answer = self.answer(self.pull(peer, wanted))
        return u32(answer.indexes) if isinstance(answer, Pulled) else []

    def wait_read_or_end(self, pull: int) -> None:
        """Wait until `pull`, the only one, is being READ or is over."""
        assert self.initiator is not None
        initiator = self.initiator
        wait_for(lambda: self.ended(pull) or initiator.unfinished(), f"the READ of pull {pull}")

    def wait_read(self, number: int = 1) -> Read:
        """Wait until the initiator has been given its `number`th READ."""

        def given() -> list[Read]:
            self.pump()
            assert self.initiator is not None
            return self.initiator.reads[number - 1 :]

        return wait_for(given, f"READ {number}; log:\n{self.log()}")[0]


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
        return self.ask(Hello(self.instance, "raw", address, COMPATIBILITY, 0))

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

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
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
