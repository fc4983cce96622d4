"""Real control planes as the supervisor would spawn them, and what stands around them.

Real: the processes, ZeroMQ, rings, ledgers. Played by the test: the engine, the target (a
TargetReady record and a sleeping child for its pidfd) and the initiator (`FakeInitiator`,
on real rings, with a sleeping child for its pidfd).
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil

from mpkv.cluster.settings import Integrity
from mpkv.memory import FILLING, LANDING, Ledger, Ring, block_ids, create_segment
from mpkv.messages import (
    Bounds,
    CancelPull,
    Compatibility,
    ControlStart,
    KeyGroup,
    MissReason,
    Pull,
    Pulled,
    PullFailed,
    Read,
    RingEnds,
    SlotsReturned,
    TargetReady,
    Tier,
    ToEngine,
)
from tests.control.common import (
    BLOCK_BYTES,
    COMPATIBILITY,
    CONTENT,
    KEY_SIZE,
    LIMIT_S,
    ROOT,
    free_port,
    keys,
    u32,
    wait_for,
)
from tests.control.fake_initiator import FakeInitiator, Sleeper

_encode = msgspec.msgpack.encode
_to_engine = msgspec.msgpack.Decoder(ToEngine)
# The target and the initiator are played, and do not beat.
BOUNDS = Bounds(start_looks=1000)


class Plane:
    """One control plane with everything around it. Use as a context manager."""

    def __init__(
        self,
        node: str,
        *,
        blocks: int = 256,
        port: int | None = None,
        listen: str = "127.0.0.1",
        peers: tuple[str, ...] = (),
        compatibility: Compatibility = COMPATIBILITY,
        deadline_s: float = 10.0,
        instance: str = "",
        target: bool = True,
        initiator: bool = True,
        automatic: bool = True,
        trace_dir: str = "",
        integrity: Integrity = Integrity.OFF,
        ring_bytes: int = 1 << 22,
        tier_blocks: int | None = None,
        bounds: Bounds = BOUNDS,
        module: str = "mpkv.control",
        before: tuple[str, ...] = (),
    ) -> None:
        """`before`: what to start it through, as a command that becomes it."""
        self.node = node
        self.instance = instance or f"{node}-{os.urandom(4).hex()}"
        self.port = port if port is not None else free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.deadline_s = deadline_s
        self.ledger = Ledger.create(blocks, KEY_SIZE)
        self.ledger.set_content(CONTENT)
        self.records: list[ToEngine] = []
        self.pulls = 0
        self._slots: dict[int, bytes] = {}
        # Of each pull: its slots that have not come back.
        self._left: dict[int, bytes] = {}
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
            listen=listen,
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
            from_engine=(RingEnds(from_engine.fd, self.wake),),
            to_engine=RingEnds(to_engine.fd, -1),
            from_target=RingEnds(from_target.fd, self.wake),
            deadline_s=deadline_s,
            integrity=integrity,
            trace_dir=trace_dir,
            bounds=bounds,
        )
        with theirs:
            self.process = self._spawn(before, module, start, theirs.fileno())
        self.initiator: FakeInitiator | None = None
        self._initiators: list[FakeInitiator] = []
        self._has_target = target
        if target:
            self.target_ready()
        if initiator:
            self.new_initiator(automatic=automatic)

    def _spawn(
        self, before: tuple[str, ...], module: str, start: ControlStart, channel: int
    ) -> subprocess.Popen[bytes]:
        start_fd = os.memfd_create("start", os.MFD_CLOEXEC)
        os.write(start_fd, _encode(start))
        fds = [start_fd, self.ledger.fd, self.wake, channel, self._tier_fd]
        fds += [ring.fd for ring in self._rings]
        fds += [self.engine_process.pidfd, self.target_process.pidfd]
        try:
            return subprocess.Popen(
                [*before, sys.executable, "-m", module, "--start-fd", str(start_fd)],
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
        self.initiator = FakeInitiator(
            self.supervisor, self.wake, len(self._initiators) + 1, automatic=automatic
        )
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

    def cpu_seconds(self) -> float:
        used = psutil.Process(self.process.pid).cpu_times()
        return float(used.user + used.system)

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
        content: bytes | None = None,
        started: float | None = None,
        also: tuple[str, ...] = (),
    ) -> int:
        """Start a pull and return its number."""
        groups = (KeyGroup(b"".join(wanted), 16, 0),) if isinstance(wanted, list) else wanted
        count = sum(len(group.keys) // KEY_SIZE for group in groups) if slots is None else slots
        allocated = self.ledger.allocate(count, LANDING)
        assert allocated is not None
        self.pulls += 1
        self._slots[self.pulls] = self._left[self.pulls] = allocated[0]
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
                now if started is None else started,
                deadline,
                also,
                content=self.ledger.content if content is None else content,
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
            self.take_back(message)

    def take_back(self, message: ToEngine) -> None:
        left = self._left[message.pull]
        if isinstance(message, PullFailed) and message.slots_held:
            return
        used = len(left)
        if isinstance(message, Pulled):
            assert left.startswith(message.slots), "a part names other slots than the next ones"
            used = len(message.slots) if message.more else used
        assert self.ledger.free(left[:used]) == used // 8, "slots came back twice"
        self._left[message.pull] = left[used:]

    def parts(self, pull: int) -> list[Pulled]:
        """What has come of it so far."""
        return [r for r in self.records if r.pull == pull and isinstance(r, Pulled)]

    def answers(self, pull: int) -> list[Pulled | PullFailed]:
        """The last record of a pull, if it has come."""
        return [
            record
            for record in self.records
            if record.pull == pull
            and not isinstance(record, SlotsReturned)
            and not (isinstance(record, Pulled) and record.more)
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

    def write(self, slots: bytes, content: bytes) -> None:
        """Write to the beginning of each of these blocks."""
        for block in u32(block_ids(slots)):
            os.pwrite(self._tier_fd, content, block * BLOCK_BYTES)

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
        pull = self.pull(peer, wanted)
        self.answer(pull)
        return self.brought(pull)

    def brought(self, pull: int) -> list[int]:
        """The indexes that have arrived of a pull, in all of its parts."""
        return [index for part in self.parts(pull) for index in u32(part.indexes)]

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
