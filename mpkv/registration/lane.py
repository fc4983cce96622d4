"""One agent's part of the READs. Several lanes, each on a thread of its own, share a large READ.

Only SUCCESS ends a part. After an error or an exception its bytes may still land, so its handle
stays as it is, neither polled nor released: its slots are safe again only when this process
is gone.
"""

import queue
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mpkv.registration.agent import Agent, describe

# Waiting a fiftieth of its age before looking at a READ again delays its end by 2 % at most.
_PACE = 0.02
_SHORTEST_PAUSE_S = 50e-6
LONGEST_PAUSE_S = 5e-3


@dataclass(slots=True, eq=False)
class Part:
    """Blocks of one READ, by indexes into both tiers; `remote_tier` is the handle by which this
    lane's agent knows the peer's. The lane fills in the rest.

    `problem` says what failed, "" for nothing. `posted` False: it never started.
    """

    read: int
    remote_tier: int
    local: NDArray[np.int32]
    remote: NDArray[np.int32]
    problem: str = ""
    posted: bool = False
    since: float = 0.0
    handle: int = field(default=-1)


class Lane(Protocol):
    """Takes parts, and hands each back once, when it has ended or failed."""

    agent: Agent

    def submit(self, part: Part) -> None: ...
    def poll(self) -> None: ...
    def ended(self) -> list[Part]: ...


class OwnLane:
    """The lane of whoever calls it: `submit` posts at once, `poll` looks at what is open.

    `local_tier` is the handle by which `agent` knows the own tier.
    """

    def __init__(self, agent: Agent, local_tier: int) -> None:
        self.agent = agent
        self._local_tier = local_tier
        self._open: list[Part] = []
        # Appending and popping from opposite ends is atomic under the GIL.
        self._ended: deque[Part] = deque()

    def submit(self, part: Part) -> None:
        part.since = time.monotonic()
        try:
            part.handle = self.agent.make_read(
                self._local_tier, part.local, part.remote_tier, part.remote
            )
        except Exception as error:
            part.problem = describe(error)
            self._ended.append(part)
            return
        part.posted = True
        if not self._over(part, first=True):
            self._open.append(part)

    def poll(self) -> None:
        self._open = [part for part in self._open if not self._over(part, first=False)]

    def ended(self) -> list[Part]:
        return [self._ended.popleft() for _ in range(len(self._ended))]

    def pause_s(self) -> float | None:
        """How long to wait before the next `poll`; None while nothing is open."""
        return pause_s(self._open[-1].since) if self._open else None

    def _over(self, part: Part, *, first: bool) -> bool:
        post = self.agent.post if first else self.agent.poll
        try:
            if not post(part.handle):
                return False
            self.agent.release(part.handle)
        except Exception as error:
            part.problem = describe(error)
        self._ended.append(part)
        return True


class ThreadLane(OwnLane):
    """A lane that works by itself, so `poll` has nothing to do."""

    def __init__(self, agent: Agent, local_tier: int, name: str) -> None:
        super().__init__(agent, local_tier)
        self._asked: queue.SimpleQueue[Part] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, part: Part) -> None:
        self._asked.put(part)

    def poll(self) -> None:
        pass

    def _work(self) -> None:
        while True:
            try:
                super().submit(self._asked.get(timeout=self.pause_s()))
            except queue.Empty:
                super().poll()


def pause_s(since: float) -> float:
    """How long to wait before looking again at what began at `since`."""
    age_s = time.monotonic() - since
    return min(max(age_s * _PACE, _SHORTEST_PAUSE_S), LONGEST_PAUSE_S)
