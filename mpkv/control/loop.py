"""The one event loop of the control plane.

Each turn takes a bounded amount from every ring and socket, lets time act, and sleeps
until something arrives or is due. Nothing a peer sends ends the loop.
"""

import contextlib
import logging
import os
import random
import select
import time
from collections.abc import Callable, Iterator

import msgspec
import zmq

from mpkv.control.destination.client import Destination
from mpkv.control.engine_link import EngineLink
from mpkv.control.hashing import Hashing
from mpkv.control.helper_health import Health
from mpkv.control.network.inbound import Inbound
from mpkv.control.network.names import Names
from mpkv.control.network.sockets import Outgoing
from mpkv.control.source.server import Source
from mpkv.control.supervisor_link import InitiatorProcess, SupervisorLink
from mpkv.errors import SegmentRefused
from mpkv.memory import Consumer, Ledger, Ring
from mpkv.messages import ControlStart, FromRegistration, TargetReady, ToControl
from mpkv.processes.health import private_memory
from mpkv.trace import open_trace

log = logging.getLogger("mpkv.control")

RECORDS_PER_TURN = 64
# libzmq takes from its connections in turn, so a flood on one delays another by at most
# one message; these bound what all together take from timers and rings.
MESSAGES_PER_TURN = 32
SECONDS_PER_TURN = 0.02
# How soon to look again whether the engine has made room in its ring.
BLOCKED_S = 0.005
# How often to look what peers make us keep, while they send.
MEMORY_S = 0.02
FREED_S = 0.2

Receive = Callable[[], tuple[bytes, list[bytes]] | None]
Take = Callable[[bytes, list[bytes], float], None]


class ControlPlane:
    """One life of the control plane."""

    def __init__(self, start: ControlStart) -> None:
        self._start = start
        ledger = Ledger.attach(start.ledger_fd)
        _check(start, ledger)
        self._counters = ledger.counters("control")
        self._poller = zmq.Poller()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=2)
        self._inbound = Inbound(
            self._context, start.listen, start.port, ledger.key_size, self._poller
        )
        self._outgoing = Outgoing(self._context, ledger.key_size)
        for pollable in (self._outgoing.socket, self._outgoing.monitor):
            self._poller.register(pollable, zmq.POLLIN)
        for fd in (start.wake_fd, start.engine_pidfd, start.target_pidfd):
            self._poller.register(fd, zmq.POLLIN)
        self._supervisor = SupervisorLink(start.supervisor_fd, start.wake_fd, self._poller)

        # Rings stay referenced: their sides are views of their mappings.
        self._rings = [
            Ring.attach(ends.ring_fd)
            for ends in (start.to_engine, start.from_target, *start.from_engine)
        ]
        to_engine, from_target, *from_engine = self._rings
        self._from_engine = [ring.consumer(start.wake_fd) for ring in from_engine]
        self._from_target = from_target.consumer(start.wake_fd)
        self._engine = EngineLink(to_engine.producer(start.to_engine.wake_fd))
        self._initiator: InitiatorProcess | None = None
        self._decode_engine = msgspec.msgpack.Decoder(ToControl).decode
        self._decode_registration = msgspec.msgpack.Decoder(FromRegistration).decode

        trace = open_trace(start.trace_dir, f"{start.node}-control")
        self._hashing = Hashing(start.tier, ledger, start.integrity, self._counters, self._wake)
        self._source = Source(
            start,
            ledger,
            self._inbound.send,
            self._target_alive,
            self._hashing,
            self._counters,
            trace,
        )
        self._destination = Destination(
            start,
            ledger,
            self._outgoing,
            Names(self._wake),
            self._engine.send,
            to_engine.max_record,
            self._hashing,
            self._counters,
            trace,
            random.Random(),
        )
        self._health = Health(start, ledger, self._destination)
        self._memory_at = 0.0
        self._inbound_dropped = False
        self._target_poll = select.poll()
        self._target_poll.register(start.target_pidfd, select.POLLIN)

    def run(self) -> None:
        """Serve until the engine is gone. Raises if only a new control plane can go on."""
        ready: set[object] = set()
        try:
            while self._start.engine_pidfd not in ready:
                now = time.monotonic()
                self._take_descriptors(ready, now)
                self._take_rings(now)
                self._take_sockets(ready, now)
                ready = self._sleep(self._tick(time.monotonic()))
        finally:
            self._hashing.close()
            self._context.destroy(linger=0)

    def _wake(self) -> None:
        """Have the loop turn once more; from any thread."""
        os.eventfd_write(self._start.wake_fd, 1)

    # --- what arrives ------------------------------------------------------------------

    def _take_descriptors(self, ready: set[object], now: float) -> None:
        start = self._start
        if start.wake_fd in ready:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(start.wake_fd)
        if start.target_pidfd in ready:
            # The supervisor is about to replace us; until then nothing is granted.
            self._poller.unregister(start.target_pidfd)
            log.warning("the target process is gone; peers get nothing from here any more")
        initiator = self._living_initiator()
        if initiator is not None and initiator.pidfd in ready:
            self._destination.initiators.gone(now)
        if self._supervisor.fd in ready:
            process = self._supervisor.receive()
            if process is not None:
                self._initiator = process
                self._health.initiator_up()
                self._destination.initiator_up(process, now)

    def _take_rings(self, now: float) -> None:
        for record in _records(self._from_target):
            message = self._decode_registration(record)
            if isinstance(message, TargetReady):
                log.info("the target %s is ready", message.agent)
                self._counters.add("targets_ready")
                self._source.target_ready(message)
        self._take_initiator(now)
        if not self._engine.blocked:
            for consumer in self._from_engine:
                for record in _records(consumer):
                    self._destination.from_engine(self._decode_engine(record), now)

    def _take_initiator(self, now: float) -> None:
        initiator = self._living_initiator()
        if initiator is None:
            return
        try:
            for record in _records(initiator.consumer):
                self._destination.from_initiator(self._decode_registration(record), now)
                if initiator.closed:
                    return
        except (SegmentRefused, msgspec.MsgspecError) as error:
            self._destination.initiators.kill(f"its ring cannot be read: {error}", now)

    def _take_sockets(self, ready: set[object], now: float) -> None:
        if self._outgoing.socket in ready:
            self._take_messages(self._outgoing.receive, self._destination.from_peer, now)
        # After the messages: what a peer said before its connection ended still counts.
        if self._outgoing.monitor in ready:
            sessions = self._destination.sessions
            for change in self._outgoing.changes():
                if change.lost:
                    sessions.disconnected(change.endpoint, now)
                else:
                    sessions.connect_failed(change.endpoint, now)
        if self._inbound.monitor in ready and self._inbound.watch():
            self._source.connection_ended(now)
        if self._inbound.socket in ready:
            self._take_messages(self._inbound.receive, self._source.receive, now)
        self._bound_memory(now)

    def _bound_memory(self, now: float) -> None:
        """Part with connections when all together make us keep too much."""
        if now < self._memory_at:
            return
        self._memory_at = now + MEMORY_S
        if private_memory() <= self._start.bounds.control_memory:
            self._inbound_dropped = False
            return
        self._counters.add("floods_cut")
        # What was dropped takes a moment to be freed.
        self._memory_at = now + FREED_S
        if self._inbound_dropped:
            # It did not help, so it is those that answer us.
            log.warning("sources send more than there is memory for; parting with all of them")
            self._destination.sessions.end_all(now)
        else:
            log.warning("peers send more than there is memory for; dropping their connections")
            self._inbound.renew()
            self._source.connection_ended(now)
        self._inbound_dropped = not self._inbound_dropped

    def _take_messages(self, receive: Receive, take: Take, now: float) -> None:
        until = time.monotonic() + SECONDS_PER_TURN
        for _ in range(MESSAGES_PER_TURN):
            received = receive()
            if received is None:
                return
            try:
                take(*received, now)
            except Exception:
                # A peer found a fault of ours; it must not bring the engine's sharing down.
                self._counters.add("dropped_by_fault")
                log.exception("a message could not be handled; dropped")
            if time.monotonic() > until:
                return

    # --- time and sleep ------------------------------------------------------------------

    def _tick(self, now: float) -> float:
        """Let time act; return when the loop must turn again at the latest."""
        due = [self._destination.tick(now), self._source.tick(now), self._inbound.tick(now)]
        due.append(self._health.tick(now))
        self._engine.flush()
        if self._engine.blocked:
            due.append(now + BLOCKED_S)
        return min(at for at in due if at is not None)

    def _sleep(self, until: float) -> set[object]:
        """Poll until something arrives or `until` has come; return what is ready."""
        sleeping: list[Consumer] = []
        wait_s = until - time.monotonic()
        for consumer in self._consumers():
            if consumer.prepare_sleep():
                sleeping.append(consumer)
            else:
                wait_s = 0.0
                break
        try:
            # Rounded up: a poll that ends just before its time would turn for nothing.
            ready = self._poller.poll(max(0, int(wait_s * 1000) + 1) if wait_s > 0 else 0)
        finally:
            for consumer in sleeping:
                consumer.finish_sleep()
        return {what for what, _ in ready}

    def _consumers(self) -> list[Consumer]:
        """The rings whose records are welcome now."""
        consumers = [self._from_target]
        if not self._engine.blocked:
            consumers += self._from_engine
        initiator = self._living_initiator()
        if initiator is not None:
            consumers.append(initiator.consumer)
        return consumers

    def _living_initiator(self) -> InitiatorProcess | None:
        initiator = self._initiator
        return None if initiator is None or initiator.closed else initiator

    def _target_alive(self) -> bool:
        """Asked at the moment of every answer: the loop may not have seen its death yet."""
        return not self._target_poll.poll(0)


def _records(consumer: Consumer) -> Iterator[bytes]:
    for _ in range(RECORDS_PER_TURN):
        record = consumer.pop()
        if record is None:
            return
        yield record


def _check(start: ControlStart, ledger: Ledger) -> None:
    found = (ledger.blocks, ledger.key_size)
    expected = (start.tier.blocks, start.compatibility.key_size)
    if found != expected:
        raise SegmentRefused(
            f"the ledger is for {found[0]} blocks and keys of {found[1]} bytes, the tier has "
            f"{expected[0]} and {expected[1]}; restart the engine"
        )
