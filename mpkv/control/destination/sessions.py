"""The destination's side: one session per address, however often it is lost and found.

A session is greeted (connect, Hello), up, or idle until its back-off ends. Peers named at
start are greeted again and again; others when a pull asks for them. Several addresses may
lead to one endpoint, or to one instance of a peer; each has a session of its own, and those
of one endpoint end together. A lost connection
interrupts a session but does not end it: libzmq connects again, and if the same instance
answers, its leases are still good. Silence, refusal or another instance ends it. A peer that
does not answer is looked for where its name leads by then.
"""

import logging
import math
import random

from mpkv.control.compare import describe, nixl_version
from mpkv.control.destination.session import (
    FIRST_BACKOFF_S,
    ContentSource,
    Failure,
    NameSource,
    Network,
    Phase,
    Session,
    SessionEvents,
)
from mpkv.control.destination.whereabouts import RENEW_S, UNANSWERED_S, Whereabouts
from mpkv.control.network.addresses import NOT_AN_ADDRESS, join_address, split_address
from mpkv.control.network.limits import max_sessions
from mpkv.control.network.wire import (
    MAX_DETAIL,
    PROTOCOL,
    Busy,
    Denied,
    Hello,
    Ping,
    Pong,
    Refuse,
    Welcome,
    printable,
    show_content,
)
from mpkv.memory import Counters
from mpkv.messages import ControlStart, MissReason

log = logging.getLogger("mpkv.control")

HANDSHAKE_S = 3.0
# How often, at least, to look at a session whose peer does not answer.
LOOK_S = 0.25
PING_S = 1.0
SILENCE_S = 4.0
# After so many sessions in a row that did not last, the next Hello waits for a back-off.
MAX_FLAPS = 20
SETTLED_S = 1.0
# With the time that libzmq gives a connection, less than a second between two tries.
LONGEST_BACKOFF_S = 0.5
# Of all together, when many are down.
TRIES_PER_S = 100
# Where nothing listens a try costs one round trip, so a pull need not wait for the
# back-off: the peer may have come up this moment.
ON_DEMAND_S = 0.1
# A mismatch heals only when somebody restarts an engine.
REFUSED_BACKOFF_S = 5.0


class Sessions:
    """Greets, watches and ends sessions; tells `events`."""

    def __init__(
        self,
        start: ControlStart,
        network: Network,
        names: NameSource,
        weights: ContentSource,
        events: SessionEvents,
        counters: Counters,
        jitter: random.Random,
    ) -> None:
        self._start = start
        self._network = network
        self._whereabouts = Whereabouts(names)
        self._weights = weights
        self._events = events
        self._counters = counters
        self._jitter = jitter
        self._own_address = join_address(start.advertise, start.port)
        self._nixl = nixl_version()
        self._by_address: dict[str, Session] = {}
        self._by_route: dict[bytes, Session] = {}
        self._ping_at = 0.0
        self._pings = 0
        self._ticked_at = 0.0
        self._down = 0
        for address in start.peers:
            if address != self._own_address and split_address(address):
                self._by_address[address] = Session(address, configured=True)

    def __len__(self) -> int:
        return len(self._by_address)

    def want(self, address: str, now: float) -> Session | Failure:
        """The session to `address`, up or being greeted; or why there is none now."""
        session = self._by_address.get(address)
        if session is None:
            if split_address(address) is None:
                return Failure(MissReason.REFUSED, f"{address[:64]!r} {NOT_AN_ADDRESS}")
            most = max_sessions()
            if len(self._by_address) >= most and not self._make_room():
                return Failure(MissReason.QUEUE_FULL, f"{most} peers are in use already")
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

    def named_elsewhere(self, session: Session) -> bool:
        """Whether another address leads to the same instance."""
        return any(
            other is not session and other.instance == session.instance
            for other in self._by_address.values()
        )

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
        memory = (welcome.agent, welcome.metadata, welcome.base, welcome.blocks)
        for other in self._by_address.values():
            if other.instance == welcome.instance and other.memory != memory:
                # One registration serves both, and would READ from the wrong one of them.
                self._refused(session, f"it claims to be {other.label}, and is not", now)
                return
        session.memory = memory
        if session.instance and session.instance != welcome.instance:
            self._lose_instance(session, _restarted(session), now)
        session.phase = Phase.UP
        session.instance, session.node = welcome.instance, printable(welcome.node[:64])
        session.up_at = session.heard_at = now
        if session.doubted_at > now:
            session.doubted_at = math.inf
        session.backoff_s = FIRST_BACKOFF_S
        self._counters.add("peers_connected")
        ours = self._weights.content
        if ours and welcome.content and welcome.content != ours:
            text = f"nothing comes from {session.label} while its weights are others: its content "
            text += f"is {show_content(welcome.content)}, ours {show_content(ours)}"
            self._announce(session, text, logging.WARNING, text)
        else:
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

    def disconnected(self, endpoint: str, now: float) -> None:
        for session in self._at_endpoint(endpoint):
            session.doubted_at = min(session.doubted_at, now)
            if session.phase is Phase.UP:
                self._greet_again(session, session.instance, now)
            elif session.phase is Phase.GREETING:
                # The Hello may be lost with the connection; its deadline stays.
                self._say_hello(session, now)

    def connect_failed(self, endpoint: str, now: float) -> None:
        for session in self._at_endpoint(endpoint):
            if session.phase is Phase.GREETING:
                detail = f"nothing answers at {session.label}"
                self._end(session, Failure(MissReason.PEER_DOWN, detail), now)
                session.on_demand_at = min(session.retry_at, now + ON_DEMAND_S)

    def end_all(self, now: float) -> None:
        """Part with every peer, and with what each has sent."""
        for session in list(self._by_address.values()):
            if session.route:
                detail = f"the connection to {session.label} was dropped in a flood"
                self._end(session, Failure(MissReason.PEER_DOWN, detail), now)

    def _at_endpoint(self, endpoint: str) -> list[Session]:
        return [s for s in self._by_address.values() if s.route and s.endpoint == endpoint]

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
        sessions = list(self._by_address.values())
        self._down = sum(s.configured and s.phase is not Phase.UP for s in sessions)
        for session in sessions:
            due = min(due, self._tick_session(session, ping, now))
        return due

    def _tick_session(self, session: Session, ping: bool, now: float) -> float:
        if self._whereabouts.moved(session, now):
            self._move(session, now)
        if session.phase is Phase.UP:
            if now - session.heard_at > SILENCE_S:
                detail = f"no answer from {session.label} for {SILENCE_S:g} s"
                self._end(session, Failure(MissReason.PEER_DOWN, detail), now)
            elif ping:
                self._network.send(session.route, Ping(session.instance, self._pings))
            return min(now + PING_S, max(session.heard_at + UNANSWERED_S, now + LOOK_S))
        if session.phase is Phase.GREETING and not session.route:
            self._connect(session, now)
        if session.phase is Phase.GREETING:
            if now < session.greet_until:
                return min(session.greet_until, now + LOOK_S)
            missing = "answer the handshake" if session.route else "get an address from its name"
            detail = f"{session.label} did not {missing} within {HANDSHAKE_S:g} s"
            self._end(session, Failure(MissReason.PEER_DOWN, detail), now)
        if session.configured and now >= session.retry_at:
            self._greet(session, now)
        return session.retry_at if session.configured else now + PING_S

    # --- transitions -------------------------------------------------------------------------

    def _greet(self, session: Session, now: float) -> None:
        """Connect if need be, and say hello."""
        session.phase = Phase.GREETING
        session.greet_until = now + HANDSHAKE_S
        session.doubted_at = min(session.doubted_at, now + RENEW_S)
        if session.route:
            self._say_hello(session, now)
        else:
            self._connect(session, now)

    def _connect(self, session: Session, now: float) -> None:
        """Connect and say hello, unless the name is still being looked up."""
        waited_s = now - (session.greet_until - HANDSHAKE_S)
        found = self._whereabouts.endpoint(session, waited_s, now)
        if isinstance(found, str):
            session.endpoint = found
            try:
                session.route = self._network.connect(session.endpoint)
            except OSError as error:
                found = error
        if isinstance(found, OSError):
            detail = f"cannot connect to {session.address}: {found.strerror or found}"
            self._end(session, Failure(MissReason.PEER_DOWN, detail), now)
        elif session.route:
            self._by_route[session.route] = session
            self._say_hello(session, now)

    def _say_hello(self, session: Session, now: float) -> None:
        start = self._start
        hello = Hello(
            start.instance,
            start.node,
            self._own_address,
            start.compatibility,
            self._weights.content,
            self._nixl,
        )
        if not self._network.send(session.route, hello):
            self._end(
                session, Failure(MissReason.PEER_DOWN, f"cannot send to {session.label}"), now
            )

    def _move(self, session: Session, now: float) -> None:
        """Go where its name leads now, in place of where it led."""
        if session.phase is Phase.IDLE:
            session.retry_at = session.on_demand_at = now
            return
        if session.phase is Phase.UP:
            self._counters.add("peers_interrupted")
            self._events.session_interrupted(session, now)
        same_endpoint = self._part(session)
        self._greet(session, now)
        if same_endpoint:
            detail = f"nothing answers at {same_endpoint[0].label}"
            self._end(same_endpoint[0], Failure(MissReason.PEER_DOWN, detail), now)

    def _part(self, session: Session) -> list[Session]:
        """Disconnect; return the sessions whose connections end with this one's."""
        self._network.disconnect(session.endpoint)
        del self._by_route[session.route]
        session.route = b""
        return self._at_endpoint(session.endpoint)

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
        same_endpoint = self._part(session) if session.route else []
        session.doubted_at = now
        session.phase = Phase.IDLE
        session.failure = Failure(why.reason, why.detail[:MAX_DETAIL])
        wait_s = max(session.backoff_s, self._down / TRIES_PER_S)
        session.retry_at = now + wait_s * self._jitter.uniform(0.7, 1.0)
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
        if same_endpoint:
            # Their connections have ended with this one; each ends those that are left.
            self._end(same_endpoint[0], why, now)

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


def _restarted(session: Session) -> Failure:
    return Failure(MissReason.PEER_DOWN, f"{session.label} was restarted")
