"""The initiator: READs blocks from peers' tiers into the own one, as the control plane asks.

One loop on the main thread takes records, posts and polls; the registrar's thread adds peers.
With READs open the loop looks at them at a pace that follows their age; without, it sleeps
in poll().
"""

import contextlib
import logging
import os
import select
import time

import msgspec

from mpkv.memory import Consumer
from mpkv.messages import AddPeer, InitiatorReady, Read, Tier, ToInitiator
from mpkv.registration.agent import Agent
from mpkv.registration.count import Count
from mpkv.registration.outbox import Outbox
from mpkv.registration.peers import Peers
from mpkv.registration.prefault import prefault
from mpkv.registration.pulse import Pulse
from mpkv.registration.reads import Reads
from mpkv.registration.registrar import Registrar
from mpkv.registration.tier import map_tier
from mpkv.trace import Trace

log = logging.getLogger("mpkv.registration")

_RECORDS_PER_PASS = 16

# Waiting a fiftieth of its age before looking at a READ again delays its end by 2 % at most.
_PACE = 0.02
_SHORTEST_PAUSE_S = 50e-6
_LONGEST_PAUSE_S = 5e-3


class Initiator:
    def __init__(
        self,
        agent: Agent,
        tier: Tier,
        consumer: Consumer,
        wake_fd: int,
        outbox: Outbox,
        count: Count,
        trace: Trace,
        pulse: Pulse,
    ) -> None:
        mapping = map_tier(tier)
        base = agent.register(mapping)
        prefault(mapping)
        blocks_handle = agent.prepare_local(base, tier.block_bytes, tier.blocks)
        self._agent = agent
        self._consumer = consumer
        self._wake_fd = wake_fd
        self._outbox = outbox
        self._count = count
        self._decode = msgspec.msgpack.Decoder(ToInitiator).decode
        self._reads = Reads(
            agent, blocks_handle, tier.blocks, tier.block_bytes, outbox, count, trace
        )
        registrar = Registrar(agent, wake_fd)
        self._peers = Peers(agent, tier.block_bytes, registrar, self._reads, outbox, count, trace)
        self._pulse = pulse
        self._warned = False

    def serve(self, pidfds: tuple[int, ...]) -> None:
        """Serve until one of `pidfds` is readable, which is noticed while idle; while READs are
        open it is up to the lifeline."""
        self._outbox.send(InitiatorReady(self._agent.name))
        poller = select.poll()
        for fd in (self._wake_fd, *pidfds):
            poller.register(fd, select.POLLIN)
        while True:
            beats_in_s = self._pulse.beat()
            took_records = self._take_records()
            self._peers.poll()
            for peer in self._reads.poll():
                self._peers.settle(peer)
            sent_all = self._outbox.flush()
            youngest = max(self._reads.newest(), self._peers.newest())
            if took_records:
                continue
            if youngest:
                time.sleep(_pause_s(time.monotonic() - youngest))
            elif not sent_all:
                time.sleep(_LONGEST_PAUSE_S)
            elif self._sleep(poller, beats_in_s) & set(pidfds):
                break
        self._peers.close()

    def _sleep(self, poller: select.poll, longest_s: float) -> set[int]:
        """Sleep until a record or the registrar comes; return the descriptors that are readable."""
        if not self._consumer.prepare_sleep():
            return set()
        readable = {fd for fd, _ in poller.poll(longest_s * 1000)}
        self._consumer.finish_sleep()
        if self._wake_fd in readable:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
        return readable

    def _take_records(self) -> bool:
        """Handle some records; False when none was there."""
        for taken in range(_RECORDS_PER_PASS):
            record = self._consumer.pop()
            if record is None:
                return taken > 0
            try:
                message = self._decode(record)
            except msgspec.DecodeError as error:
                self._drop(error)
                continue
            self._handle(message)
        return True

    def _handle(self, message: ToInitiator) -> None:
        if isinstance(message, Read):
            self._peers.read(message)
        elif isinstance(message, AddPeer):
            self._peers.add(message)
        else:
            self._peers.remove(message.instance)

    def _drop(self, error: msgspec.DecodeError) -> None:
        self._count("records_dropped")
        if not self._warned:
            self._warned = True
            log.warning("dropped a malformed record from the control plane (%s)", error)


def _pause_s(age_s: float) -> float:
    return min(max(age_s * _PACE, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
