"""The initiator: READs blocks from peers' tiers into the own one, as the control plane asks.

One loop on the main thread takes records, posts and polls; the registrar's thread adds peers,
and further lanes, each with an agent and a thread of its own, share large READs with it:
between processes of one host an agent copies with the one thread that posts. With READs
open the loop looks at them at a pace that follows their age; without, it sleeps in poll().
"""

import contextlib
import logging
import os
import select
import time
from collections.abc import Sequence

import msgspec

from mpkv.memory import Consumer
from mpkv.messages import AddPeer, InitiatorReady, Read, Tier, ToInitiator
from mpkv.registration.agent import Agent
from mpkv.registration.count import Count
from mpkv.registration.lane import LONGEST_PAUSE_S, Lane, OwnLane, ThreadLane, pause_s
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


class Initiator:
    def __init__(
        self,
        agents: Sequence[Agent],
        tier: Tier,
        consumer: Consumer,
        wake_fd: int,
        outbox: Outbox,
        count: Count,
        trace: Trace,
        pulse: Pulse,
    ) -> None:
        mapping = map_tier(tier)
        tiers = []
        for agent in agents:
            base = agent.register(mapping)
            tiers.append(agent.prepare_local(base, tier.block_bytes, tier.blocks))
        prefault(mapping)
        self._agent = agents[0]
        self._consumer = consumer
        self._wake_fd = wake_fd
        self._outbox = outbox
        self._count = count
        self._decode = msgspec.msgpack.Decoder(ToInitiator).decode
        lanes: list[Lane] = [OwnLane(agents[0], tiers[0])]
        for number in range(1, len(agents)):
            lanes.append(ThreadLane(agents[number], tiers[number], f"lane-{number}"))
        self._reads = Reads(lanes, tier.blocks, tier.block_bytes, outbox, count, trace)
        registrar = Registrar(agents, wake_fd)
        self._peers = Peers(agents, tier.block_bytes, registrar, self._reads, outbox, count, trace)
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
            for ended in self._reads.poll():
                self._peers.read_ended(ended)
            sent_all = self._outbox.flush()
            youngest = self._reads.newest()
            if took_records:
                continue
            if youngest:
                time.sleep(pause_s(youngest))
            elif not sent_all:
                time.sleep(LONGEST_PAUSE_S)
            elif self._sleep(poller, beats_in_s) & set(pidfds):
                break
        self._peers.close()

    def progress(self) -> None:
        """Let idle transports do their housekeeping: keepalives, lost connections."""
        self._reads.progress()

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
