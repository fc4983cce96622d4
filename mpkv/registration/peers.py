"""The peers of one initiator, from AddPeer to RemovePeer.

The registrar's thread adds a peer and READs a page from it; READs asked for meanwhile wait.
"""

import logging
import time
from collections.abc import Sequence

from mpkv.messages import AddPeer, PeerAdded, PeerFailed, Read
from mpkv.registration.agent import Agent
from mpkv.registration.count import Count
from mpkv.registration.outbox import Outbox
from mpkv.registration.peer import Peer, Stage
from mpkv.registration.reads import Ended, Reads
from mpkv.registration.registrar import Registered, Registrar, Registration
from mpkv.trace import Trace

log = logging.getLogger("mpkv.registration")


class Peers:
    def __init__(
        self,
        agents: Sequence[Agent],
        block_bytes: int,
        registrar: Registrar,
        reads: Reads,
        outbox: Outbox,
        count: Count,
        trace: Trace,
    ) -> None:
        self._agents = agents
        self._block_bytes = block_bytes
        self._registrar = registrar
        self._reads = reads
        self._outbox = outbox
        self._count = count
        self._trace = trace
        self._peers: dict[str, Peer] = {}

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
        else:
            self._reads.start(read, peer)

    # --- what happens by itself --------------------------------------------------------------

    def read_ended(self, ended: Ended) -> None:
        if ended.lost and ended.peer.stage is Stage.READY:
            self._fail(ended.peer, ended.lost)
        else:
            self._release_old(ended.peer)
            self.settle(ended.peer)

    def settle(self, peer: Peer) -> None:
        """Carry out a removal that had to wait."""
        if self._peers.get(peer.instance) is not peer:
            return
        if peer.leaving and peer.stage is not Stage.ADDING and peer.open_reads == 0:
            self._forget(peer)
            self._count("peers_removed")
            log.info("peer %s removed", peer.instance)

    def poll(self) -> None:
        """Go on with every peer that the registrar is done with."""
        for outcome in self._registrar.outcomes():
            self._registered(outcome)

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
        if agent in (own.name for own in self._agents):
            return "this process"
        return next((peer.instance for peer in self._peers.values() if peer.agent == agent), "")

    def _registered(self, outcome: Registered) -> None:
        peer = self._peers[outcome.instance]
        peer.old_tiers.append(peer.tiers)
        peer.tiers = outcome.tiers
        self._release_old(peer)
        if outcome.problem:
            self._fail(peer, outcome.problem)
        else:
            self._ready(peer)

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
            self._reads.start(peer.waiting.popleft(), peer)
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
        peer.old_tiers.append(peer.tiers)
        self._release_old(peer)
        self._remove(peer.agent)

    def _release_old(self, peer: Peer) -> None:
        # A lane may yet have to make a READ by the handles that were its peer's when it was asked.
        while peer.old_tiers and peer.open_reads == 0:
            # After a failure fewer lanes have one.
            for agent, tier in zip(self._agents, peer.old_tiers.pop(), strict=False):
                agent.release_blocks(tier)

    def _remove(self, name: str) -> None:
        for agent in self._agents:
            agent.remove_peer(name)
