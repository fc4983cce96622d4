"""The destination's side: one session per address, however often it is lost and found.

A session is greeted (connect, Hello), up, or idle until its back-off ends. Peers named at
start are greeted again and again; others when a pull asks for them. A lost connection
interrupts a session but does not end it: libzmq connects again, and if the same instance
answers, its leases are still good. Silence, refusal or another instance ends it.
"""

import enum
import logging
import random
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mpkv.control.compare import describe
from mpkv.control.wire import (
    MAX_DETAIL,
    PROTOCOL,
    Busy,
    Denied,
    Hello,
    Ping,
    Pong,
    Refuse,
    ToSource,
    Welcome,
    printable,
)
from mpkv.memory import Counters
from mpkv.messages import ControlStart, MissReason

log = logging.getLogger("mpkv.control")

HANDSHAKE_S = 3.0
PING_S = 1.0
SILENCE_S = 4.0
# After so many sessions in a row that did not last, the next Hello waits for a back-off.
MAX_FLAPS = 20
SETTLED_S = 1.0
FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 5.0
# Where nothing listens a try costs one round trip, so a pull need not wait for the
# back-off: the peer may have come up this moment.
ON_DEMAND_S = 0.1
# A mismatch heals only when somebody restarts an engine.
REFUSED_BACKOFF_S = 5.0
MAX_SESSIONS = 1024
MAX_ADDRESS = 300


class Phase(enum.Enum):
    IDLE = "idle"
    GREETING = "greeting"
    UP = "up"


class Failure(NamedTuple):
    reason: MissReason
    detail: str


NOT_YET = Failure(MissReason.PEER_DOWN, "not connected yet")


@dataclass(slots=True, eq=False)
class Session:
    """`instance` is whom the last Welcome named; it stays while the session is interrupted."""

    address: str
    configured: bool
    phase: Phase = Phase.IDLE
    route: bytes = b""
    instance: str = ""
    node: str = ""
    greet_until: float = 0.0
    retry_at: float = 0.0
    # When a pull may have the next try made, at the earliest.
    on_demand_at: float = 0.0
    backoff_s: float = FIRST_BACKOFF_S
    up_at: float = 0.0
    flaps: int = 0
    heard_at: float = 0.0
    asked_at: float = 0.0
    failure: Failure = NOT_YET
    # What the log was last told about this peer; nothing is said twice.
    announced: str = ""

    @property
    def label(self) -> str:
        return f"{self.node} ({self.address})" if self.node else self.address


class Network(Protocol):
    """The outgoing socket."""

    def connect(self, address: str) -> bytes:
        """Return a route never used before; raises OSError if `address` is none."""

    def disconnect(self, address: str, route: bytes) -> None: ...
    def send(self, route: bytes, message: ToSource) -> bool: ...


class SessionEvents(Protocol):
    """Who hears what becomes of sessions."""

    def session_up(self, session: Session, welcome: Welcome, now: float) -> None: ...

    def session_interrupted(self, session: Session, now: float) -> None:
        """Connection lost, instance not; a Welcome or an end follows."""

    def instance_lost(self, session: Session, why: Failure, now: float) -> None:
        """`session.instance` is over; its leases and registration are worth nothing."""

    def session_down(self, session: Session, why: Failure, now: float) -> None:
        """Nobody answers at the address; follows `instance_lost` if there was one."""


class Sessions:
    """Greets, watches and ends sessions; tells `events`."""

    def __init__(
        self,
        start: ControlStart,
        network: Network,
        epoch: "EpochSource",
        events: SessionEvents,
        counters: Counters,
        jitter: random.Random,
    ) -> None:
        self._start = start
        self._network = network
        self._epoch = epoch
        self._events = events
        self._counters = counters
        self._jitter = jitter
        self._own_address = f"{start.advertise}:{start.port}"
        self._by_address: dict[str, Session] = {}
        self._by_route: dict[bytes, Session] = {}
        self._ping_at = 0.0
        self._pings = 0
        self._ticked_at = 0.0
        for address in start.peers:
            if address != self._own_address and valid_address(address):
                self._by_address[address] = Session(address, configured=True)

    def __len__(self) -> int:
        return len(self._by_address)

    def want(self, address: str, now: float) -> Session | Failure:
        """The session to `address`, up or being greeted; or why there is none now."""
        session = self._by_address.get(address)
        if session is None:
            if not valid_address(address):
                return Failure(MissReason.REFUSED, f"{address[:64]!r} is not host:port")
            if len(self._by_address) >= MAX_SESSIONS and not self._make_room():
                return Failure(MissReason.QUEUE_FULL, f"{MAX_SESSIONS} peers are in use already")
            session = self._by_address[address] = Session(address, configured=False)
        session.asked_at = now
        if session.phase is Phase.IDLE:
            if now < session.on_demand_at:
                return session.failure
            self._greet(session, now)
            if session.phase is Phase.IDLE:
                return session.failure
        return session

    def at_route(self, route: bytes) -> Session | None:
        return self._by_route.get(route)

    # --- what peers say ----------------------------------------------------------------

    def heard(self, session: Session, now: float) -> None:
        session.heard_at = now

    def welcome(self, session: Session, welcome: Welcome, now: float) -> None:
        if session.phase is not Phase.GREETING:
            self._counters.add("dropped_stale")
            return
        if welcome.block_bytes != self._start.tier.block_bytes:
            text = (
                f"its blocks have {welcome.block_bytes} bytes, ours {self._start.tier.block_bytes}"
            )
            self._refused(session, text, now)
            return
        if session.instance and session.instance != welcome.instance:
            self._lose_instance(session, _restarted(session), now)
        session.phase = Phase.UP
        session.instance, session.node = welcome.instance, printable(welcome.node[:64])
        session.up_at = session.heard_at = now
        session.backoff_s = FIRST_BACKOFF_S
        self._counters.add("peers_connected")
        self._announce(session, "up", logging.INFO, f"connected to {session.label}")
        self._events.session_up(session, welcome, now)

    def refuse(self, session: Session, refusal: Refuse, now: float) -> None:
        if session.phase is not Phase.GREETING:
            self._counters.add("dropped_stale")
            return
        session.node = printable(refusal.node[:64])
        text = describe(refusal.differing, "destination") or printable(refusal.detail)
        self._refused(session, text, now)

    def busy(self, session: Session, busy: Busy, now: float) -> None:
        if session.phase is Phase.GREETING:
            detail = f"{session.label} is not ready: {printable(busy.detail)}"
            self._end(session, Failure(MissReason.PEER_DOWN, detail), now)
            session.on_demand_at = min(session.retry_at, now + ON_DEMAND_S)
        else:
            self._counters.add("dropped_stale")

    def pong(self, session: Session, pong: Pong, now: float) -> None:
        if session.phase is Phase.UP and pong.instance != session.instance:
            self._greet_again(session, pong.instance, now)

    def unknown_session(self, session: Session, denied: Denied, now: float) -> None:
        """The peer knows nothing of us: it restarted, or saw our connection end."""
        if session.phase is Phase.UP:
            self._greet_again(session, denied.instance, now)
        else:
            self._counters.add("dropped_stale")

    def foreign(self, session: Session, protocol: bytes, now: float) -> None:
        """What answers there does not speak our version of the protocol."""
        if session.phase is Phase.GREETING:
            theirs = protocol[:16].decode(errors="replace")
            self._refused(
                session, f"it speaks {theirs!r}, this engine speaks {PROTOCOL.decode()!r}", now
            )
        else:
            self._counters.add("dropped_foreign")

    # --- what libzmq says ----------------------------------------------------------------

    def disconnected(self, address: str, now: float) -> None:
        session = self._by_address.get(address)
        if session is None:
            return
        if session.phase is Phase.UP:
            self._greet_again(session, session.instance, now)
        elif session.phase is Phase.GREETING:
            # The Hello may be lost with the connection; its deadline stays.
            self._say_hello(session, now)

    def connect_failed(self, address: str, now: float) -> None:
        session = self._by_address.get(address)
        if session is not None and session.phase is Phase.GREETING:
            detail = f"nothing answers at {session.label}"
            self._end(session, Failure(MissReason.PEER_DOWN, detail), now)
            session.on_demand_at = min(session.retry_at, now + ON_DEMAND_S)

    # --- time ------------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """Do what time asks for; return when to call again at the latest."""
        if now - self._ticked_at > SILENCE_S / 2:
            # We were stopped; what peers said meanwhile is still unread.
            for session in self._by_address.values():
                session.heard_at = max(session.heard_at, now - SILENCE_S / 2)
                session.greet_until = max(session.greet_until, now + SILENCE_S / 2)
        self._ticked_at = now
        ping = now >= self._ping_at
        if ping:
            self._ping_at = now + PING_S
            self._pings += 1
        due = self._ping_at
        for session in list(self._by_address.values()):
            due = min(due, self._tick_session(session, ping, now))
        return due

    def _tick_session(self, session: Session, ping: bool, now: float) -> float:
        if session.phase is Phase.UP:
            if now - session.heard_at > SILENCE_S:
                detail = f"no answer from {session.label} for {SILENCE_S:g} s"
                self._end(session, Failure(MissReason.PEER_DOWN, detail), now)
            elif ping:
                self._network.send(session.route, Ping(session.instance, self._pings))
            return now + PING_S
        if session.phase is Phase.GREETING:
            if now < session.greet_until:
                return session.greet_until
            detail = f"{session.label} did not answer the handshake within {HANDSHAKE_S:g} s"
            self._end(session, Failure(MissReason.PEER_DOWN, detail), now)
        if session.configured and now >= session.retry_at:
            self._greet(session, now)
        return session.retry_at if session.configured else now + PING_S

    # --- transitions -------------------------------------------------------------------------

    def _greet(self, session: Session, now: float) -> None:
        """Connect if need be, and say hello."""
        if not session.route:
            try:
                session.route = self._network.connect(session.address)
            except OSError as error:
                detail = f"cannot connect to {session.address}: {error}"
                self._end(session, Failure(MissReason.PEER_DOWN, detail), now)
                return
            self._by_route[session.route] = session
        session.phase = Phase.GREETING
        session.greet_until = now + HANDSHAKE_S
        self._say_hello(session, now)

    def _say_hello(self, session: Session, now: float) -> None:
        start = self._start
        hello = Hello(
            start.instance, start.node, self._own_address, start.compatibility, self._epoch()
        )
        if not self._network.send(session.route, hello):
            self._end(
                session, Failure(MissReason.PEER_DOWN, f"cannot send to {session.label}"), now
            )

    def _greet_again(self, session: Session, instance: str, now: float) -> None:
        session.flaps = session.flaps + 1 if now - session.up_at < SETTLED_S else 0
        if session.flaps > MAX_FLAPS:
            session.flaps = 0
            detail = f"{session.label} ends every session at once"
            self._end(session, Failure(MissReason.PEER_DOWN, detail), now)
            return
        if instance != session.instance:
            self._lose_instance(session, _restarted(session), now)
        self._counters.add("peers_interrupted")
        self._events.session_interrupted(session, now)
        self._greet(session, now)

    def _refused(self, session: Session, text: str, now: float) -> None:
        self._counters.add("peers_refused")
        text = f"{session.label} refuses to share: {text}"
        self._announce(session, text, logging.WARNING, text)
        self._end(session, Failure(MissReason.REFUSED, text), now)
        session.retry_at = now + REFUSED_BACKOFF_S * self._jitter.uniform(0.7, 1.0)
        session.on_demand_at = session.retry_at

    def _end(self, session: Session, why: Failure, now: float) -> None:
        """Disconnect, tell everybody, and wait a while before the next try."""
        if session.route:
            self._network.disconnect(session.address, session.route)
            del self._by_route[session.route]
            session.route = b""
        session.phase = Phase.IDLE
        session.failure = Failure(why.reason, why.detail[:MAX_DETAIL])
        session.retry_at = now + session.backoff_s * self._jitter.uniform(0.7, 1.0)
        session.on_demand_at = session.retry_at
        session.backoff_s = min(session.backoff_s * 2, LONGEST_BACKOFF_S)
        if session.instance:
            if why.reason is not MissReason.REFUSED:
                self._announce(session, "lost", logging.WARNING, f"lost a peer: {why.detail}")
            self._lose_instance(session, session.failure, now)
        elif session.configured and not session.announced:
            text = f"{why.detail}; trying again"
            self._announce(session, "absent", logging.INFO, text)
        self._events.session_down(session, session.failure, now)

    def _lose_instance(self, session: Session, why: Failure, now: float) -> None:
        self._counters.add("peers_lost")
        self._events.instance_lost(session, why, now)
        session.instance = ""

    def _announce(self, session: Session, state: str, level: int, text: str) -> None:
        if session.announced != state:
            session.announced = state
            log.log(level, "%s", text)

    def _make_room(self) -> bool:
        """Forget the address that was asked for longest ago among those not in use."""
        idle = [
            session
            for session in self._by_address.values()
            if session.phase is Phase.IDLE and not session.configured
        ]
        if not idle:
            return False
        del self._by_address[min(idle, key=lambda session: session.asked_at).address]
        return True


class EpochSource(Protocol):
    def __call__(self) -> int: ...


def valid_address(address: str) -> bool:
    """Whether `address` is `host:port`; whether it leads anywhere is another matter."""
    host, _, port = address.rpartition(":")
    return (
        0 < len(host) <= MAX_ADDRESS
        and all(c.isascii() and (c.isalnum() or c in ".-_[]:") for c in host)
        and port.isascii()
        and port.isdigit()
        and 0 < int(port[:6]) < 65536
    )


def _restarted(session: Session) -> Failure:
    return Failure(MissReason.PEER_DOWN, f"{session.label} was restarted")
