"""Spawns the helper processes of one engine, watches them, and replaces them.

The watcher thread sleeps in `poll()` on pidfds; in steady state it takes no GIL. It
hands two things to the scheduler thread, each by one atomic Python operation: `link`,
the rings to the living control plane, and `dead`, the generations that are over and
reaped. A generation is one control plane with its target: peers know both by one
instance id, so both are replaced together. An initiator is replaced alone.
"""

import contextlib
import logging
import os
import select
import signal
import socket
import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass

import msgspec

from mpkv.cluster.settings import EngineSettings
from mpkv.engine.helper_process import HelperProcess
from mpkv.engine.source import addresses
from mpkv.memory import Consumer, Ledger, Producer, Ring
from mpkv.messages import (
    Bounds,
    Compatibility,
    ControlStart,
    InitiatorUp,
    RegistrationStart,
    RingEnds,
    Tier,
)
from mpkv.processes.orphans import remove_orphans

log = logging.getLogger("mpkv.engine")

# The keys of one record of a pull (32,768 of at most 64 bytes) and its slots fit three times.
TO_CONTROL_BYTES = 8 << 20
TO_ENGINE_BYTES = 4 << 20
REGISTRATION_BYTES = 4 << 20

BOUNDS = Bounds()

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 5.0
# A helper that lived this long starts again with the first back-off.
SETTLED_S = 10.0


@dataclass(frozen=True)
class Link:
    """The engine's ends of the rings of one generation: the input thread's is
    `to_control_early`, the others are the scheduler thread's."""

    generation: int
    to_control: Producer
    to_control_early: Producer
    from_control: Consumer
    max_record: int
    # When its processes were started, by time.monotonic().
    since: float


@dataclass
class _Backoff:
    wait_s: float = FIRST_BACKOFF_S
    started_at: float = 0.0
    due_at: float = 0.0

    def started(self) -> None:
        self.started_at = time.monotonic()

    def failed(self) -> None:
        now = time.monotonic()
        if now - self.started_at > SETTLED_S:
            self.wait_s = FIRST_BACKOFF_S
        self.due_at = now + self.wait_s
        self.wait_s = min(self.wait_s * 2, LONGEST_BACKOFF_S)


@dataclass
class Generation:
    """The helpers that live now; the watcher thread's own."""

    number: int
    control: HelperProcess
    target: HelperProcess
    # Our end of the socket that carries InitiatorUp and its descriptors.
    channel: socket.socket
    initiator: HelperProcess | None = None


class Supervisor:
    """Keeps a control plane, a target and an initiator running beside the engine."""

    def __init__(
        self,
        settings: EngineSettings,
        compatibility: Compatibility,
        rank: int,
        tier: Tier,
        ledger: Ledger,
        bounds: Bounds = BOUNDS,
    ) -> None:
        self.link: Link | None = None
        self.dead: deque[int] = deque()
        self.generation: Generation | None = None
        self._settings = settings
        self._compatibility = compatibility
        self._port = settings.port + rank
        self._label = settings.node if rank == 0 else f"{settings.node}.{rank}"
        self._tier = tier
        self._ledger = ledger
        self._bounds = bounds
        self._identity = uuid.uuid4().hex
        self._engine_pidfd = os.pidfd_open(os.getpid())
        # These outlive generations, so that no thread ever writes to a descriptor
        # another has closed and the kernel has given away. A stale count in them
        # costs one idle turn.
        self._control_wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._initiator_wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._distrusted = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._numbers = 0
        self._initiators = 0
        self._initiator_backoff = _Backoff()
        self._watcher = threading.Thread(target=self._watch, name="mpkv-watch", daemon=True)

    def start(self) -> None:
        """Begin spawning; returns at once, with `link` still None."""
        self._watcher.start()

    def stop(self) -> None:
        """Begin to end the helpers for good; returns at once, from any thread."""
        os.eventfd_write(self._stop, 1)

    def shutdown(self) -> None:
        """Stop watching and end the helpers; bounded, and harmless when repeated."""
        self.stop()
        if self._watcher.ident is not None:
            self._watcher.join(timeout=15.0)

    def distrust(self, generation: int) -> None:
        """Have the helpers of `generation` replaced: they wrote what cannot be."""
        link = self.link
        if link is not None and link.generation == generation:
            self.link = None
            os.eventfd_write(self._distrusted, 1)

    # --- the watcher thread ----------------------------------------------------------

    def _watch(self) -> None:
        backoff = _Backoff()
        stopping = False
        while not stopping:
            backoff.started()
            try:
                stopping = self._live_once()
            except Exception as error:
                # Whatever it is, an engine without helpers must not stay without them.
                log.exception(
                    "[%s] helpers cannot be kept running (%s); sharing is off, trying again",
                    self._label,
                    error,
                )
            if not stopping:
                backoff.failed()
                stopping = self._stopped_within(backoff.due_at - time.monotonic())

    def _live_once(self) -> bool:
        """Spawn a generation and stay with it to its end; True to stop for good."""
        self.generation = generation = self._spawn_generation()
        try:
            return self._watch_generation(generation)
        finally:
            self._end_generation(generation)

    def _watch_generation(self, generation: Generation) -> bool:
        """Return when the generation is over: True to stop, False to replace it."""
        self._initiator_backoff = _Backoff()
        while True:
            wait_s = None
            if generation.initiator is None:
                wait_s = self._initiator_backoff.due_at - time.monotonic()
                if wait_s <= 0:
                    self._spawn_initiator(generation)
                    continue
            ready = self._poll(generation, wait_s)
            if self._stop in ready:
                return True
            if self._distrusted in ready:
                os.eventfd_read(self._distrusted)
                return False
            for helper in (generation.control, generation.target):
                if helper.pidfd in ready:
                    log.warning(
                        "[%s] %s (pid %s) is gone; replacing the helpers",
                        self._label,
                        helper.module,
                        helper.pid,
                    )
                    return False
            initiator = generation.initiator
            if initiator is not None and initiator.pidfd in ready:
                code = self._reap(initiator)
                generation.initiator = None
                self._initiator_backoff.failed()
                log.warning("[%s] the initiator is gone (exit %s); replacing it", self._label, code)

    def _poll(self, generation: Generation, wait_s: float | None) -> set[int]:
        poller = select.poll()
        fds = [self._stop, self._distrusted, generation.control.pidfd, generation.target.pidfd]
        if generation.initiator is not None:
            fds.append(generation.initiator.pidfd)
        for fd in fds:
            poller.register(fd, select.POLLIN)
        timeout = None if wait_s is None else max(wait_s, 0.0) * 1000
        return {fd for fd, _ in poller.poll(timeout)}

    def _stopped_within(self, wait_s: float) -> bool:
        poller = select.poll()
        poller.register(self._stop, select.POLLIN)
        return bool(poller.poll(max(wait_s, 0.0) * 1000))

    # --- one generation --------------------------------------------------------------

    def _spawn_generation(self) -> Generation:
        self._numbers += 1
        number = self._numbers
        instance = f"{self._identity}.{number}"
        from_engine = Ring.create(TO_CONTROL_BYTES, "mpkv-to-control")
        early = Ring.create(TO_CONTROL_BYTES, "mpkv-to-control-early")
        to_engine = Ring.create(TO_ENGINE_BYTES, "mpkv-to-engine")
        from_target = Ring.create(REGISTRATION_BYTES, "mpkv-from-target")
        with contextlib.ExitStack() as undo:
            target = self._spawn_registration(
                "target", f"{instance}.target", None, from_target, None
            )
            undo.callback(target.reap)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.callback(ours.close)
            with theirs:
                control = self._spawn_control(
                    # Early pulls first: what cancels them comes by the other ring.
                    instance,
                    target,
                    theirs,
                    (early, from_engine),
                    to_engine,
                    from_target,
                )
            undo.callback(control.reap)
            link = Link(
                number,
                from_engine.producer(self._control_wake),
                early.producer(self._control_wake),
                to_engine.consumer(-1),
                from_engine.max_record,
                time.monotonic(),
            )
            undo.pop_all()
        self.link = link
        return Generation(number, control, target, ours)

    def _spawn_control(
        self,
        instance: str,
        target: HelperProcess,
        channel: socket.socket,
        from_engine: tuple[Ring, ...],
        to_engine: Ring,
        from_target: Ring,
    ) -> HelperProcess:
        settings = self._settings
        start = ControlStart(
            node=self._label,
            instance=instance,
            listen=settings.listen,
            port=self._port,
            advertise=settings.advertise,
            peers=tuple(sorted(addresses(settings.peers))),
            compatibility=self._compatibility,
            tier=self._tier,
            ledger_fd=self._ledger.fd,
            engine_pidfd=self._engine_pidfd,
            target_pidfd=target.pidfd,
            supervisor_fd=channel.fileno(),
            wake_fd=self._control_wake,
            from_engine=tuple(RingEnds(ring.fd, self._control_wake) for ring in from_engine),
            to_engine=RingEnds(to_engine.fd, -1),
            from_target=RingEnds(from_target.fd, self._control_wake),
            deadline_s=settings.deadline_s,
            integrity=settings.integrity,
            trace_dir=settings.trace_dir,
            bounds=self._bounds,
        )
        fds = [self._ledger.fd, self._engine_pidfd, target.pidfd, channel.fileno()]
        fds += [self._control_wake, to_engine.fd, from_target.fd, self._tier.fd]
        fds += [ring.fd for ring in from_engine]
        return HelperProcess("mpkv.control", start, fds)

    def _spawn_registration(
        self,
        role: str,
        agent: str,
        from_control: Ring | None,
        to_control: Ring,
        control: HelperProcess | None,
    ) -> HelperProcess:
        start = RegistrationStart(
            role=role,
            node=self._label,
            agent=agent,
            tier=self._tier,
            backends=self._settings.backends,
            engine_pidfd=self._engine_pidfd,
            control_pidfd=control.pidfd if control is not None else -1,
            wake_fd=self._initiator_wake if from_control is not None else -1,
            from_control=RingEnds(
                from_control.fd if from_control is not None else -1, self._initiator_wake
            ),
            to_control=RingEnds(to_control.fd, self._control_wake),
            trace_dir=self._settings.trace_dir,
            ledger_fd=self._ledger.fd,
            lanes=self._settings.lanes,
            bounds=self._bounds,
        )
        fds = [self._tier.fd, self._engine_pidfd, to_control.fd, self._control_wake]
        fds.append(self._ledger.fd)
        if from_control is not None and control is not None:
            fds += [from_control.fd, self._initiator_wake, control.pidfd]
        return HelperProcess("mpkv.registration", start, fds)

    def _spawn_initiator(self, generation: Generation) -> None:
        self._initiators += 1
        to_initiator = Ring.create(REGISTRATION_BYTES, "mpkv-to-initiator")
        from_initiator = Ring.create(REGISTRATION_BYTES, "mpkv-from-initiator")
        agent = f"{self._identity}.{generation.number}.initiator{self._initiators}"
        try:
            initiator = self._spawn_registration(
                "initiator", agent, to_initiator, from_initiator, generation.control
            )
        except OSError as error:
            self._initiator_backoff.failed()
            log.error("[%s] the initiator cannot be started (%s); trying again", self._label, error)
            return
        self._initiator_backoff.started()
        generation.initiator = initiator
        fds = [to_initiator.fd, self._initiator_wake, from_initiator.fd, initiator.pidfd]
        # A control plane that hangs with its socket buffer full gets no initiator; the
        # send must not hang this thread with it.
        try:
            socket.send_fds(
                generation.channel,
                [msgspec.msgpack.encode(InitiatorUp(self._initiators))],
                fds,
                socket.MSG_DONTWAIT,
            )
        except OSError:
            generation.control.signal(signal.SIGKILL)

    def _end_generation(self, generation: Generation) -> None:
        # The scheduler must stop pushing before it hears of the end.
        self.link = None
        self.generation = None
        helpers = [generation.control, generation.target]
        if generation.initiator is not None:
            helpers.insert(0, generation.initiator)
        for helper in helpers:
            # They have nothing to do at their end, and one that is stopped heeds nothing else.
            helper.signal(signal.SIGKILL)
        for helper in helpers:
            self._reap(helper)
        generation.channel.close()
        # Reaped: nobody else can change these pins, and the next control plane does
        # not exist yet.
        self._ledger.zero_control_pins()
        self.dead.append(generation.number)

    def _reap(self, helper: HelperProcess) -> int:
        """Wait until the process is certainly gone: only then may slots be used again.

        One that even SIGKILL does not end hangs in the kernel; sharing is off meanwhile.
        """
        while True:
            try:
                code = helper.reap()
                break
            except TimeoutError:
                log.error(
                    "[%s] %s (pid %s) does not end; sharing is off until it has",
                    self._label,
                    helper.module,
                    helper.pid,
                )
        if code == -signal.SIGKILL:
            remove_orphans()
        return code
