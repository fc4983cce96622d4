"""The thread on which an initiator registers peers, so that its loop never waits for one."""

import os
import queue
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from mpkv.registration.agent import Agent, describe


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
    """The outcome. `blocks_handle` describes the peer's tier, -1 after a failure."""

    instance: str
    blocks_handle: int
    problem: str


class Registrar:
    """Takes `Registration`s in order and leaves one `Registered` for each, signalling
    `wake_fd` every time."""

    def __init__(self, agent: Agent, wake_fd: int) -> None:
        self._agent = agent
        self._wake_fd = wake_fd
        self._asked: queue.SimpleQueue[Registration] = queue.SimpleQueue()
        # Appending and popping from opposite ends is atomic under the GIL.
        self._outcomes: deque[Registered] = deque()
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
        try:
            if wanted.replaces is not None:
                self._agent.remove_peer(wanted.replaces)
            # NIXL keeps half of what it cannot load, under the name in it: that must not be
            # another peer's, which could not be loaded any more then.
            if not self._agent.is_metadata_of(wanted.agent, wanted.metadata):
                problem = f"its metadata is not of NIXL agent {wanted.agent!r}"
                return Registered(wanted.instance, -1, problem)
            self._agent.add_peer(wanted.metadata)
            handle = self._agent.prepare_remote(
                wanted.agent, wanted.base, wanted.block_bytes, wanted.blocks
            )
            self._agent.connect(wanted.agent)
        except Exception as error:
            return Registered(wanted.instance, -1, describe(error))
        return Registered(wanted.instance, handle, "")
