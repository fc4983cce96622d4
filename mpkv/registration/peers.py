"""The peers of one initiator, from AddPeer to RemovePeer.

Adding a peer takes two steps: the registrar's thread loads its metadata, then the loop posts one
small READ into scratch memory and polls it like any other. It pays for the connection,
so that the first pull does not.
"""

import logging
import mmap
import time
from dataclasses import dataclass

from mpkv.messages import AddPeer, PeerAdded, PeerFailed, Read
from mpkv.registration.agent import Agent, describe
from mpkv.registration.count import Count
from mpkv.registration.outbox import Outbox
from mpkv.registration.peer import Peer, Stage
from mpkv.registration.reads import Reads
from mpkv.registration.registrar import Registered, Registrar, Registration
from mpkv.trace import Trace

log = logging.getLogger("mpkv.registration")

WARMING_DEADLINE_S = 3.0


@dataclass(slots=True)
class Warming:
    peer: Peer
    handle: int
    posted: float


class Peers:
    def __init__(
        self,
        agent: Agent,
        block_bytes: int,
        registrar: Registrar,
        reads: Reads,
        outbox: Outbox,
        count: Count,
        trace: Trace,
    ) -> None:
        self._agent = agent
        self._block_bytes = block_bytes
        self._registrar = registrar
        self._reads = reads
        self._outbox = outbox
        self._count = count
        self._trace = trace
        self._peers: dict[str, Peer] = {}
        self._warming: list[Warming] = []
        # Warming READs land here, never in the tier, so they may be given up at any time.
        self._scratch = agent.register(mmap.mmap(-1, mmap.PAGESIZE))

    def newest(self) -> float:
        """When the youngest open warming READ was posted; 0.0 while none is open."""
        return self._warming[-1].posted if self._warming else 0.0

    # --- what the control plane asks for ---------------------------------------------------

    def add(self, asked: AddPeer) -> None:
        """Register a peer, or register it anew. The answer is PeerAdded or PeerFailed."""
        problem = self._problem(asked)
        if problem:
            self._report_failure(asked.instance, problem)
            return
        peer = self._peers.get(asked.instance)
        replaces = None
        if peer is None:
            peer = Peer(asked.instance, asked.agent, asked.base, asked.blocks, time.monotonic())
            self._peers[asked.instance] = peer
        elif peer.stage is Stage.ADDING:
            peer.leaving = False
            return  # the answer under way serves both
        else:
            # With READs open the old agent has to stay; NIXL loads the metadata over it.
            replaces = peer.agent if peer.open_reads == 0 else None
            peer.agent, peer.base, peer.blocks = asked.agent, asked.base, asked.blocks
            peer.stage, peer.asked, peer.leaving = Stage.ADDING, time.monotonic(), False
        self._registrar.submit(
            Registration(
                asked.instance,
                asked.agent,
                asked.metadata,
                asked.base,
                asked.blocks,
                asked.block_bytes,
                replaces,
            )
        )

    def remove(self, instance: str) -> None:
        """Remove the peer as soon as none of its READs is waiting or open."""
        peer = self._peers.get(instance)
        if peer is not None:
            peer.leaving = True
            self.settle(peer)

    def read(self, read: Read) -> None:
        peer = self._peers.get(read.instance)
        if peer is None:
            self._reads.refuse(read, f"no peer {read.instance} was added")
        elif peer.leaving:
            self._reads.refuse(read, f"peer {read.instance} is being removed")
        elif peer.stage is Stage.DOWN:
            self._reads.refuse(read, f"peer {read.instance} has to be added again")
        elif peer.stage is Stage.ADDING:
            peer.waiting.append(read)
        elif lost := self._reads.start(read, peer):
            self._fail(peer, lost)

    # --- what happens by itself --------------------------------------------------------------

    def settle(self, peer: Peer) -> None:
        """Carry out a removal that had to wait."""
        if peer.leaving and peer.stage is not Stage.ADDING and peer.open_reads == 0:
            self._forget(peer)
            self._count("peers_removed")
            log.info("peer %s removed", peer.instance)

    def poll(self) -> None:
        """Move every peer that is being added as far as it gets."""
        for outcome in self._registrar.outcomes():
            self._registered(outcome)
        for warming in self._warming[:]:
            self._look_at(warming)

    def close(self) -> None:
        """Disconnect from all peers. Only while no READ is open."""
        for peer in list(self._peers.values()):
            self._forget(peer)

    def _problem(self, asked: AddPeer) -> str:
        if asked.block_bytes != self._block_bytes:
            return f"its blocks have {asked.block_bytes} bytes, ours {self._block_bytes}"
        if not 0 < asked.blocks < 2**31:
            return f"its tier has {asked.blocks} blocks, expected 1 to {2**31 - 1}"
        if not asked.agent.startswith(f"{asked.instance}."):
            return f"its agent {asked.agent} is not named after it"
        owner = self._owner_of(asked.agent)
        if owner not in ("", asked.instance):
            return f"its agent {asked.agent} belongs to {owner} already"
        known = self._peers.get(asked.instance)
        if known is None or known.agent == asked.agent:
            return ""
        if known.stage is Stage.ADDING or known.open_reads:
            return f"its earlier agent {known.agent} is still in use"
        return ""

    def _owner_of(self, agent: str) -> str:
        """The instance whose agent it is, "this process", or "" for an agent not known."""
        if agent == self._agent.name:
            return "this process"
        return next((peer.instance for peer in self._peers.values() if peer.agent == agent), "")

    def _registered(self, outcome: Registered) -> None:
        peer = self._peers[outcome.instance]
        if peer.blocks_handle >= 0:
            self._agent.release_blocks(peer.blocks_handle)
        peer.blocks_handle = outcome.blocks_handle
        if outcome.problem:
            self._fail(peer, outcome.problem)
            return
        try:
            length = min(mmap.PAGESIZE, self._block_bytes)
            handle = self._agent.make_small_read(peer.agent, self._scratch, peer.base, length)
            self._agent.post(handle)
        except Exception as error:
            self._fail(peer, describe(error))
            return
        self._warming.append(Warming(peer, handle, time.monotonic()))

    def _look_at(self, warming: Warming) -> None:
        problem = ""
        try:
            if not self._agent.poll(warming.handle):
                if time.monotonic() < warming.posted + WARMING_DEADLINE_S:
                    return
                problem = f"a first READ of one page did not end within {WARMING_DEADLINE_S:.0f} s"
        except Exception as error:
            problem = describe(error)
        self._warming.remove(warming)
        self._agent.release(warming.handle)
        if problem:
            self._fail(warming.peer, problem)
        else:
            self._ready(warming.peer)

    def _ready(self, peer: Peer) -> None:
        seconds = time.monotonic() - peer.asked
        peer.stage = Stage.READY
        self._count("peers_added")
        self._trace("peer_added", peer=peer.instance, seconds=seconds)
        self._outbox.send(PeerAdded(peer.instance, seconds))
        log.info(
            "peer %s added in %.1f ms: %d blocks of %d bytes",
            peer.instance,
            seconds * 1e3,
            peer.blocks,
            self._block_bytes,
        )
        while peer.waiting:
            if lost := self._reads.start(peer.waiting.popleft(), peer):
                self._fail(peer, lost)
                return
        self.settle(peer)

    def _fail(self, peer: Peer, problem: str) -> None:
        self._report_failure(peer.instance, problem)
        while peer.waiting:
            self._reads.refuse(
                peer.waiting.popleft(), f"peer {peer.instance} is not registered: {problem}"
            )
        peer.stage = Stage.DOWN
        if peer.open_reads == 0:
            self._forget(peer)

    def _report_failure(self, instance: str, problem: str) -> None:
        self._count("peers_failed")
        self._trace("peer_failed", peer=instance, detail=problem)
        self._outbox.send(PeerFailed(instance, problem))
        log.warning("peer %s is not registered: %s", instance, problem)

    def _forget(self, peer: Peer) -> None:
        del self._peers[peer.instance]
        if peer.blocks_handle >= 0:
            self._agent.release_blocks(peer.blocks_handle)
        self._agent.remove_peer(peer.agent)
