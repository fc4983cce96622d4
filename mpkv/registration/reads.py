"""Open READs: each is split over lanes if that pays, and gets exactly one result.

A READ with a part that failed after it was posted keeps its peer from being removed for ever,
since its bytes may still land.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpkv.messages import Read, ReadDone, ReadFailed
from mpkv.registration.count import Count
from mpkv.registration.lane import Lane, Part
from mpkv.registration.outbox import Outbox
from mpkv.registration.peer import Peer
from mpkv.trace import Trace

# Below this, handing a part to another thread costs more than copying it here.
SMALLEST_PART = 2 << 20


class Ended(NamedTuple):
    """A READ that needs no further look. `lost`: why the peer has to be added again, or ""."""

    peer: Peer
    lost: str


@dataclass(slots=True)
class OpenRead:
    """`parts` counts those that have not ended; `refused` says why one was never posted."""

    read: int
    peer: Peer
    blocks: int
    since: float
    parts: int
    refused: str = ""


class Reads:
    """The READs of one initiator between its own tier, of `blocks` blocks, and those of peers."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        blocks: int,
        block_bytes: int,
        outbox: Outbox,
        count: Count,
        trace: Trace,
    ) -> None:
        self._lanes = lanes
        # How many bytes each lane has been given and not done.
        self._load = [0] * len(lanes)
        self._blocks = blocks
        self._block_bytes = block_bytes
        self._outbox = outbox
        self._count = count
        self._trace = trace
        # By numbers of our own: what a READ's parts belong to must not depend on its sender.
        self._open: dict[int, OpenRead] = {}
        self._numbers = 0
        self._over: list[Ended] = []

    def newest(self) -> float:
        """When the youngest open READ was posted; 0.0 while none is open."""
        return self._open[next(reversed(self._open))].since if self._open else 0.0

    def progress(self) -> None:
        """Of lanes that are idle; the others see to it themselves, and may be long inside NIXL."""
        for lane, load in zip(self._lanes, self._load, strict=True):
            if not load:
                lane.agent.progress()

    def refuse(self, read: Read, detail: str) -> None:
        """Answer a READ that is certain never to have been posted."""
        self._refused(read.read, detail)

    def start(self, read: Read, peer: Peer) -> None:
        """Post `read` to a registered peer."""
        problem = self._problem(read, peer)
        if problem:
            self.refuse(read, problem)
            return
        local, remote = _indexes(read.local), _indexes(read.remote)
        lanes = self._lanes_for(len(local))
        self._numbers += 1
        number = self._numbers
        self._open[number] = OpenRead(read.read, peer, len(local), time.monotonic(), len(lanes))
        peer.open_reads += 1
        self._count("reads")
        self._trace("read_posted", read=read.read, blocks=len(local), peer=read.instance)
        # Own lane last: it may copy the bytes right here, and the others copy meanwhile.
        for lane, ours, theirs in zip(
            reversed(lanes),
            np.array_split(local, len(lanes)),
            np.array_split(remote, len(lanes)),
            strict=True,
        ):
            self._load[lane] += len(ours)
            self._lanes[lane].submit(Part(number, peer.tiers[lane], ours, theirs))
        self._collect()

    def poll(self) -> list[Ended]:
        """Look at every open READ once; return those that ended since the last time."""
        if any(self._load):
            for lane in self._lanes:
                lane.poll()
            self._collect()
        over, self._over = self._over, []
        return over

    def _lanes_for(self, blocks: int) -> list[int]:
        """Which lanes share a READ: those with the least to do, the first ones among equals."""
        count = min(len(self._lanes), max(blocks * self._block_bytes // SMALLEST_PART, 1))
        by_load = sorted(range(len(self._lanes)), key=self._load.__getitem__)
        return sorted(by_load[: min(count, blocks)])

    def _collect(self) -> None:
        for index, lane in enumerate(self._lanes):
            for part in lane.ended():
                self._load[index] -= len(part.local)
                self._take(part)

    def _take(self, part: Part) -> None:
        opened = self._open.get(part.read)
        if opened is None:
            return  # another part has failed before
        if part.problem and part.posted:
            del self._open[part.read]
            self._quarantine(opened.read, part.problem)
            return
        if part.problem:
            opened.refused = part.problem
        opened.parts -= 1
        if not opened.parts:
            del self._open[part.read]
            self._finish(opened)

    def _finish(self, opened: OpenRead) -> None:
        """No part can write any more."""
        opened.peer.open_reads -= 1
        if opened.refused:
            lost = f"NIXL has lost its registration ({opened.refused})"
            self._over.append(Ended(opened.peer, lost))
            detail = f"peer {opened.peer.instance} has to be added again: {lost}"
            self._refused(opened.read, detail)
            return
        self._over.append(Ended(opened.peer, ""))
        seconds = time.monotonic() - opened.since
        self._count("blocks_read", opened.blocks)
        self._count("bytes_read", opened.blocks * self._block_bytes)
        self._trace("read_done", read=opened.read, seconds=seconds)
        self._outbox.send(ReadDone(opened.read, seconds))

    def _quarantine(self, read: int, detail: str) -> None:
        """The peer's `open_reads` stays up on purpose: it keeps it from being removed."""
        self._count("reads_failed")
        self._trace("read_failed", read=read, detail=detail)
        self._outbox.send(ReadFailed(read, detail, posted=True))

    def _refused(self, read: int, detail: str) -> None:
        self._count("reads_refused")
        self._trace("read_refused", read=read, detail=detail)
        self._outbox.send(ReadFailed(read, detail, posted=False))

    def _problem(self, read: Read, peer: Peer) -> str:
        if len(read.local) != len(read.remote) or len(read.local) % 4 or not read.local:
            return (
                f"expected as many remote as local block ids of 4 bytes each, at least one; "
                f"found {len(read.remote)} and {len(read.local)} bytes"
            )
        for side, ids, blocks in (
            ("local", read.local, self._blocks),
            ("remote", read.remote, peer.blocks),
        ):
            highest = int(np.frombuffer(ids, np.uint32).max())
            if highest >= blocks:
                return f"{side} block {highest} is beyond the {blocks} blocks of that tier"
        return ""


def _indexes(ids: bytes) -> NDArray[np.int32]:
    return np.frombuffer(ids, np.uint32).astype(np.int32)
