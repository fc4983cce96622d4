"""The thread on which an initiator registers peers, so that its loop never waits for one."""

import mmap
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mpkv.registration.agent import Agent, describe

WARMING_DEADLINE_S = 3.0
_WARMING_PAUSE_S = 2e-4


@dataclass(frozen=True, slots=True)
class Registration:
    """Make `agent`'s tier at `base` readable. `replaces`, if any, is removed before."""

    instance: str
    agent: str
    metadata: bytes
    base: int
    blocks: int
    block_bytes: int
    replaces: str | None


@dataclass(frozen=True, slots=True)
class Registered:
    """The outcome. `tiers` are handles of the peer's tier, one for each lane's agent; after a
    failure, as many as there were."""

    instance: str
    tiers: tuple[int, ...]
    problem: str


class Registrar:
    """Takes `Registration`s in order, carries each out with all of `agents`, and leaves one
    `Registered` for it, signalling `wake_fd` every time."""

    def __init__(self, agents: Sequence[Agent], wake_fd: int) -> None:
        self._agents = agents
        self._wake_fd = wake_fd
        self._asked: queue.SimpleQueue[Registration] = queue.SimpleQueue()
        # Appending and popping from opposite ends is atomic under the GIL.
        self._outcomes: deque[Registered] = deque()
        # Warming READs land here, never in the tier, so they may be given up at any time.
        scratch = mmap.mmap(-1, mmap.PAGESIZE)
        self._scratch = [agent.register(scratch) for agent in agents]
        threading.Thread(target=self._work, name="registrar", daemon=True).start()

    def submit(self, registration: Registration) -> None:
        self._asked.put(registration)

    def outcomes(self) -> Iterator[Registered]:
        while self._outcomes:
            yield self._outcomes.popleft()

    def _work(self) -> None:
        while True:
            self._outcomes.append(self._register(self._asked.get()))
            os.eventfd_write(self._wake_fd, 1)

    def _register(self, wanted: Registration) -> Registered:
        tiers: list[int] = []
        problem = ""
        until = time.monotonic() + WARMING_DEADLINE_S
        try:
            for agent, scratch in zip(self._agents, self._scratch, strict=True):
                if wanted.replaces is not None:
                    agent.remove_peer(wanted.replaces)
                # NIXL keeps half of what it cannot load, under the name in it: that must not be
                # another peer's, which could not be loaded any more then.
                if not agent.is_metadata_of(wanted.agent, wanted.metadata):
                    problem = f"its metadata is not of NIXL agent {wanted.agent!r}"
                    break
                agent.add_peer(wanted.metadata)
                tiers.append(
                    agent.prepare_remote(
                        wanted.agent, wanted.base, wanted.block_bytes, wanted.blocks
                    )
                )
                agent.connect(wanted.agent)
                problem = _warm(agent, scratch, wanted, until)
                if problem:
                    break
        except Exception as error:
            problem = describe(error)
        return Registered(wanted.instance, tuple(tiers), problem)


def _warm(agent: Agent, scratch: int, peer: Registration, until: float) -> str:
    """One small READ pays for the connection, so that the first pull does not. Returns why it
    failed, or ""."""
    read = agent.make_small_read(
        peer.agent, scratch, peer.base, min(mmap.PAGESIZE, peer.block_bytes)
    )
    try:
        done = agent.post(read)
        while not done:
            if time.monotonic() > until:
                return f"first READs of one page did not end within {WARMING_DEADLINE_S:.0f} s"
            time.sleep(_WARMING_PAUSE_S)
            done = agent.poll(read)
    finally:
        agent.release(read)
    return ""
