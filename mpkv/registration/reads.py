"""Open READs: each is posted once, polled until it ends, and gets exactly one result.

Only SUCCESS ends a READ. After an error or an exception its parts may still land, so its handle
stays as it is, neither polled nor released, and its peer is never removed: the slots
are safe again only when this process is gone.
"""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpkv.messages import Read, ReadDone, ReadFailed
from mpkv.registration.agent import Agent, describe
from mpkv.registration.count import Count
from mpkv.registration.outbox import Outbox
from mpkv.registration.peer import Peer
from mpkv.trace import Trace


@dataclass(slots=True)
class OpenRead:
    read: int
    peer: Peer
    handle: int
    blocks: int
    posted: float


class Reads:
    """The READs of one initiator between its own tier and those of its peers.

    `blocks_handle` describes the own tier of `blocks` blocks.
    """

    def __init__(
        self,
        agent: Agent,
        blocks_handle: int,
        blocks: int,
        block_bytes: int,
        outbox: Outbox,
        count: Count,
        trace: Trace,
    ) -> None:
        self._agent = agent
        self._blocks_handle = blocks_handle
        self._blocks = blocks
        self._block_bytes = block_bytes
        self._outbox = outbox
        self._count = count
        self._trace = trace
        self._open: list[OpenRead] = []

    def newest(self) -> float:
        """When the youngest open READ was posted; 0.0 while none is open."""
        return self._open[-1].posted if self._open else 0.0

    def refuse(self, read: Read, detail: str) -> None:
        """Answer a READ that is certain never to have been posted."""
        self._count("reads_refused")
        self._trace("read_refused", read=read.read, detail=detail)
        self._outbox.send(ReadFailed(read.read, detail, posted=False))

    def start(self, read: Read, peer: Peer) -> str:
        """Post `read` to a registered peer. Returns "", or why the peer has to be added again."""
        problem = self._problem(read, peer)
        if problem:
            self.refuse(read, problem)
            return ""
        local, remote = _indexes(read.local), _indexes(read.remote)
        try:
            handle = self._agent.make_read(self._blocks_handle, local, peer.blocks_handle, remote)
        except Exception as error:
            lost = f"NIXL has lost its registration ({describe(error)})"
            self.refuse(read, f"peer {read.instance} has to be added again: {lost}")
            return lost
        opened = OpenRead(read.read, peer, handle, len(local), time.monotonic())
        peer.open_reads += 1
        self._count("reads")
        self._trace("read_posted", read=read.read, blocks=len(local), peer=read.instance)
        if not self._ended(opened, first=True):
            self._open.append(opened)
        return ""

    def poll(self) -> list[Peer]:
        """Look at every open READ once; return the peers of those that ended."""
        looked_at = [(opened, self._ended(opened, first=False)) for opened in self._open]
        self._open = [opened for opened, ended in looked_at if not ended]
        return [opened.peer for opened, ended in looked_at if ended]

    def _ended(self, opened: OpenRead, *, first: bool) -> bool:
        """True when `opened` got its result and needs no further look."""
        try:
            done = self._agent.post(opened.handle) if first else self._agent.poll(opened.handle)
        except Exception as error:
            self._quarantine(opened, describe(error))
            return True
        if done:
            self._finish(opened)
        return done

    def _finish(self, opened: OpenRead) -> None:
        seconds = time.monotonic() - opened.posted
        opened.peer.open_reads -= 1
        self._count("blocks_read", opened.blocks)
        self._count("bytes_read", opened.blocks * self._block_bytes)
        self._trace("read_done", read=opened.read, seconds=seconds)
        self._outbox.send(ReadDone(opened.read, seconds))
        self._agent.release(opened.handle)

    def _quarantine(self, opened: OpenRead, detail: str) -> None:
        """`open_reads` stays up on purpose: it keeps the peer from being removed."""
        self._count("reads_failed")
        self._trace("read_failed", read=opened.read, detail=detail)
        self._outbox.send(ReadFailed(opened.read, detail, posted=True))

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
