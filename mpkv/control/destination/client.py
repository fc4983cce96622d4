"""The destination's side as a whole: what arrives from anywhere goes to what it concerns."""

import logging
import random
from collections.abc import Callable

from mpkv.control.checksums import Checksums
from mpkv.control.destination.admission import Admission
from mpkv.control.destination.answers import Answers
from mpkv.control.destination.checks import Checks
from mpkv.control.destination.initiators import Initiators, Process
from mpkv.control.destination.pulls import Pulls
from mpkv.control.destination.session import Failure, NameSource, Network, Session
from mpkv.control.destination.sessions import Sessions
from mpkv.control.network.wire import (
    PROTOCOL,
    Busy,
    Confirmed,
    Denial,
    Denied,
    Grant,
    NotConfirmed,
    Pong,
    Refuse,
    Welcome,
    decode_to_destination,
)
from mpkv.errors import WireRefused
from mpkv.memory import Counters, Ledger
from mpkv.messages import (
    CancelPull,
    ControlStart,
    FromRegistration,
    InitiatorReady,
    PeerAdded,
    PeerFailed,
    ReadDone,
    ReadFailed,
    ToControl,
    ToEngine,
)
from mpkv.trace import Trace

log = logging.getLogger("mpkv.control")


class Destination:
    """Carries out the engine's pulls."""

    def __init__(
        self,
        start: ControlStart,
        ledger: Ledger,
        network: Network,
        names: NameSource,
        to_engine: Callable[[ToEngine], None],
        longest_answer: int,
        checksums: Checksums,
        counters: Counters,
        trace: Trace,
        jitter: random.Random,
    ) -> None:
        self._counters = counters
        self.initiators = Initiators(counters, lambda now: self.pulls.initiator_gone(now))
        self.pulls = Pulls(
            key_size=ledger.key_size,
            blocks=ledger.blocks,
            deadline_s=start.deadline_s,
            weights=ledger,
            network=network,
            want=lambda address, now: self.sessions.want(address, now),
            initiators=self.initiators,
            answers=Answers(to_engine, counters, trace),
            checks=Checks(start.integrity, ledger.key_size, checksums, counters),
            counters=counters,
        )
        self._admission = Admission(
            self.pulls, self.initiators, ledger.key_size, ledger, longest_answer
        )
        self.sessions = Sessions(start, network, names, ledger, self, counters, jitter)

    def from_engine(self, message: ToControl, now: float) -> None:
        if isinstance(message, CancelPull):
            self.pulls.cancel(message.pull)
            return
        if self.pulls.is_open(message.pull):
            # An answer would end the pull that has this number already.
            log.error("the engine used pull number %d twice", message.pull)
            self._counters.add("dropped_duplicate")
            return
        hindrance = self._admission.hindrance(message, now)
        if hindrance is not None:
            self.pulls.reject(message, hindrance)
        else:
            self.pulls.start(message, now)

    def from_peer(self, route: bytes, frames: list[bytes], now: float) -> None:
        """Take one message of a source; never raises for what is in it."""
        session = self.sessions.at_route(route)
        if session is None:
            self._counters.add("dropped_stale")
            return
        if len(frames) != 2:
            self._counters.add("dropped_malformed")
            return
        if frames[0] != PROTOCOL:
            self.sessions.foreign(session, frames[0], now)
            return
        try:
            message = decode_to_destination(frames[1])
        except WireRefused as error:
            self._counters.add("dropped_malformed")
            log.debug("dropped a message of %s: %s", session.label, error)
            return
        self.sessions.heard(session, now)
        match message:
            case Grant():
                self.pulls.granted(session, message, now)
            case Confirmed():
                self.pulls.confirmed(session, message, now)
            case NotConfirmed():
                self.pulls.not_confirmed(session, message)
            case Denied(reason=Denial.UNKNOWN_SESSION):
                self.sessions.unknown_session(session, message, now)
            case Denied():
                self.pulls.denied(session, message, now)
            case Pong():
                self.sessions.pong(session, message, now)
            case Welcome():
                self.sessions.welcome(session, message, now)
            case Refuse():
                self.sessions.refuse(session, message, now)
            case Busy():
                self.sessions.busy(session, message, now)

    def from_initiator(self, message: FromRegistration, now: float) -> None:
        match message:
            case ReadDone():
                self.initiators.read_done(now)
                self.pulls.reads.done(message.read, now)
            case ReadFailed():
                self.pulls.reads.failed(message.read, message.detail, message.posted, now)
            case InitiatorReady():
                log.info("the initiator %s is ready", message.agent)
                self._counters.add("initiators_ready")
                self.initiators.ready(now)
            case PeerAdded():
                if self.initiators.added(message.instance, now):
                    self.pulls.registration_changed(message.instance, now)
            case PeerFailed():
                if self.initiators.failed(message.instance, message.detail, now):
                    self.pulls.registration_changed(message.instance, now)

    def initiator_up(self, process: Process, now: float) -> None:
        """A new initiator has come, so every earlier one has been reaped."""
        self.initiators.adopt(process, now)
        self.pulls.reads.initiator_reaped()

    def tick(self, now: float) -> float:
        """Do what time asks for; return when to call again at the latest."""
        due = [self.sessions.tick(now), self.pulls.tick(now), self.initiators.tick(now)]
        return min(at for at in due if at is not None)

    # --- SessionEvents -------------------------------------------------------------------

    def session_up(self, session: Session, welcome: Welcome, now: float) -> None:
        self.initiators.add(welcome, session.address, now)
        self.pulls.session_up(session, now)

    def session_interrupted(self, session: Session, now: float) -> None:
        self.pulls.session_interrupted(session, now)

    def instance_lost(self, session: Session, why: Failure, now: float) -> None:
        self.pulls.instance_lost(session, why)
        if not self.sessions.named_elsewhere(session):
            self.initiators.remove(session.instance)

    def session_down(self, session: Session, why: Failure, now: float) -> None:
        self.pulls.session_down(session, why, now)
