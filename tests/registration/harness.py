"""Plays supervisor and control plane for real registration processes."""

import mmap
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from mpkv.engine.helper_process import HelperProcess
from mpkv.memory import Ledger, Ring, create_segment
from mpkv.messages import (
    AddPeer,
    Bounds,
    FromRegistration,
    InitiatorReady,
    PeerAdded,
    PeerFailed,
    Read,
    ReadDone,
    ReadFailed,
    RegistrationStart,
    RemovePeer,
    RingEnds,
    TargetReady,
    Tier,
    ToInitiator,
)

RING_BYTES = 1 << 16
LIMIT_S = 20.0
# The control plane is a bystander, which has no beat.
BOUNDS = Bounds(start_looks=1000)
Result = TypeVar("Result")


class Bystander:
    """A process that does nothing; its death stands for the engine's or the control plane's."""

    def __init__(self) -> None:
        self._popen = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self.pidfd = os.pidfd_open(self._popen.pid)

    def die(self) -> None:
        self._popen.kill()
        self._popen.communicate()

    def close(self) -> None:
        self.die()
        os.close(self.pidfd)


class Helper:
    """One registration process with a tier and a ring to its control plane."""

    def __init__(
        self,
        role: str,
        blocks: int,
        block_bytes: int,
        module: str = "mpkv.registration",
        backends: tuple[str, ...] = ("UCX",),
        lanes: int = 2,
        bounds: Bounds = BOUNDS,
    ) -> None:
        self.instance = f"{uuid.uuid4().hex}.1"
        self.blocks, self.block_bytes = blocks, block_bytes
        self.engine, self.control = Bystander(), Bystander()
        self.tier_fd = create_segment("test-tier", blocks * block_bytes)
        self.tier = mmap.mmap(self.tier_fd, blocks * block_bytes)
        self.ledger = Ledger.create(16, 36)
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._to_helper = Ring.create(RING_BYTES, "test-to-helper")
        from_helper = Ring.create(RING_BYTES, "test-from-helper")
        self._producer = self._to_helper.producer(self._wake_fd)
        self._consumer = from_helper.consumer(-1)
        self._decode = msgspec.msgpack.Decoder(FromRegistration).decode
        self.results: list[FromRegistration] = []
        start = RegistrationStart(
            role=role,
            node="test",
            agent=f"{self.instance}.{role}",
            tier=Tier(self.tier_fd, blocks, block_bytes),
            backends=backends,
            engine_pidfd=self.engine.pidfd,
            control_pidfd=self.control.pidfd if role == "initiator" else -1,
            wake_fd=self._wake_fd,
            from_control=RingEnds(self._to_helper.fd, self._wake_fd),
            to_control=RingEnds(from_helper.fd, -1),
            trace_dir="",
            ledger_fd=self.ledger.fd,
            lanes=lanes,
            bounds=bounds,
        )
        fds = [self.tier_fd, self.engine.pidfd, self.control.pidfd, self._wake_fd]
        fds += [self._to_helper.fd, from_helper.fd, self.ledger.fd]
        self.process = HelperProcess(module, start, fds)

    def close(self) -> None:
        self.process.reap()
        self.engine.close()
        self.control.close()
        self.tier.close()
        os.close(self.tier_fd)
        os.close(self._wake_fd)

    def push(self, record: bytes) -> None:
        assert self._producer.push(record)

    def take(self) -> None:
        """Move what has come into `results`."""
        while (record := self._consumer.pop()) is not None:
            self.results.append(self._decode(record))

    def wait(self, find: Callable[[FromRegistration], Result | None]) -> Result:
        """The first result for which `find` answers, now or within a bound."""

        def look() -> Result | None:
            self.take()
            answers = (find(result) for result in self.results)
            return next((found for found in answers if found is not None), None)

        return self.wait_until(look)

    def wait_until(self, look: Callable[[], Result | None]) -> Result:
        """What `look` returns as soon as it is true, within a bound."""
        until = time.monotonic() + LIMIT_S
        while True:
            if found := look():
                return found
            assert self.process.alive(), "the process is gone"
            assert time.monotonic() < until, f"nothing came; there is {self.results}"
            time.sleep(0.001)

    def stop(self) -> None:
        """Stop the process, and return only when each of its threads has stopped."""
        self.process.signal(signal.SIGSTOP)
        until = time.monotonic() + LIMIT_S
        tasks = Path(f"/proc/{self.process.pid}/task")
        while any(_state(task) != "T" for task in tasks.iterdir()):
            assert time.monotonic() < until, "the process does not stop"
            time.sleep(0.001)

    def exit_code(self, within_s: float) -> int:
        """Wait for the process to leave by itself."""
        until = time.monotonic() + within_s
        while self.process.alive():
            assert time.monotonic() < until, f"still running after {within_s} s"
            time.sleep(0.005)
        ended = os.waitid(os.P_PIDFD, self.process.pidfd, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


class Target(Helper):
    """A target whose blocks each repeat one word of their own."""

    def __init__(
        self,
        blocks: int = 64,
        block_bytes: int = 65536,
        seed: int = 1,
        bounds: Bounds = BOUNDS,
    ) -> None:
        super().__init__("target", blocks, block_bytes, bounds=bounds)
        self.words = np.arange(blocks, dtype=np.uint64) + np.uint64(seed << 32)
        cells = np.frombuffer(self.tier, np.uint64).reshape(blocks, -1)
        cells[:] = self.words[:, None]

    def ready(self) -> TargetReady:
        return self.wait(lambda result: result if isinstance(result, TargetReady) else None)

    def as_peer(self) -> AddPeer:
        ready = self.ready()
        return AddPeer(
            self.instance, ready.agent, ready.metadata, ready.base, self.blocks, self.block_bytes
        )


class Initiator(Helper):
    def __init__(
        self,
        blocks: int = 64,
        block_bytes: int = 65536,
        module: str = "mpkv.registration",
        backends: tuple[str, ...] = ("UCX",),
        lanes: int = 2,
        bounds: Bounds = BOUNDS,
    ) -> None:
        super().__init__("initiator", blocks, block_bytes, module, backends, lanes, bounds)
        self._reads = 0

    def send(self, message: ToInitiator) -> None:
        self.push(msgspec.msgpack.encode(message))

    def ready(self) -> InitiatorReady:
        return self.wait(lambda result: result if isinstance(result, InitiatorReady) else None)

    def add(self, target: Target) -> PeerAdded:
        """Add the target and wait until it is."""
        self.send(target.as_peer())
        return self.added(target.instance)

    def added(self, instance: str) -> PeerAdded:
        def find(result: FromRegistration) -> PeerAdded | None:
            if isinstance(result, PeerFailed) and result.instance == instance:
                raise AssertionError(result.detail)
            if isinstance(result, PeerAdded) and result.instance == instance:
                return result
            return None

        added = self.wait(find)
        self.results.remove(added)
        return added

    def not_added(self, instance: str) -> str:
        """Why the peer could not be added."""

        def find(result: FromRegistration) -> PeerFailed | None:
            if isinstance(result, PeerFailed) and result.instance == instance:
                return result
            return None

        failed = self.wait(find)
        self.results.remove(failed)
        return failed.detail

    def remove(self, target: Target) -> None:
        self.send(RemovePeer(target.instance))

    def read(self, instance: str, remote: Sequence[int], local: Sequence[int]) -> int:
        """Ask for a READ; returns its number."""
        self._reads += 1
        ids = [np.array(side, dtype=np.uint32).tobytes() for side in (remote, local)]
        self.send(Read(self._reads, instance, *ids))
        return self._reads

    def answer(self, read: int) -> ReadDone | ReadFailed:
        """The result of a READ."""
        answer = self.wait(partial(_answers, read))
        assert isinstance(answer, ReadDone | ReadFailed)
        return answer

    def answers(self, read: int) -> int:
        """How many results the READ has so far."""
        self.take()
        return sum(_answers(read, result) is not None for result in self.results)

    def fetched(self, target: Target, remote: Sequence[int], local: Sequence[int]) -> None:
        """READ blocks and check every byte of them."""
        answer = self.answer(self.read(target.instance, remote, local))
        assert isinstance(answer, ReadDone), answer
        self.check(target, remote, local)

    def check(self, target: Target, remote: Sequence[int], local: Sequence[int]) -> None:
        cells = np.frombuffer(self.tier, np.uint64).reshape(self.blocks, -1)
        wanted = target.words[np.asarray(remote)]
        assert (cells[np.asarray(local)] == wanted[:, None]).all()

    def counted(self) -> dict[str, int]:
        """The counters, after everything sent so far has been handled."""
        self.settled()
        return self.ledger.counters("initiator").read()

    def settled(self) -> None:
        """Return once everything sent so far has been handled: the ring keeps order."""
        answer = self.answer(self.read("nobody", [0], [0]))
        assert isinstance(answer, ReadFailed)


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def _answers(read: int, result: FromRegistration) -> ReadDone | ReadFailed | None:
    if isinstance(result, ReadDone | ReadFailed) and result.read == read:
        return result
    return None
