"""The process that READs: which one it is, and which peers it has registered.

There is at most one initiator. A new one knows no peer; all that are wanted are added again,
one at a time: NIXL may abort or hang in what a peer sent, and whose fault that was must be
certain, or the same peer would end every initiator and nobody would be served.
"""

import enum
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from mpkv.control.network.wire import Welcome
from mpkv.memory import Counters
from mpkv.messages import AddPeer, Read, RemovePeer, ToInitiator

log = logging.getLogger("mpkv.control")

# Registering takes milliseconds, and gives up by itself after seconds.
REGISTER_S = 15.0
# READs that go on being done show that a registration does not hang but waits for them; not
# for ever, though.
REGISTER_AT_MOST_S = 60.0
# Between two looks at the time, at least one a second: the machine was paused meanwhile.
PAUSE_S = 3.0
# What takes this long has not given up by itself: whoever else waits in NIXL may wait for it.
GIVES_UP_S = 4.0
REGISTER_BACKOFF_S = 1.0
# For a peer in whose registration an initiator hung, or died twice: the first death may be
# a chance, and its peer is only tried after all others.
CULPRIT_BACKOFF_S = 120.0
MAX_CULPRITS = 1024
# An initiator that was ended on purpose has a successor by then, or something is wrong.
RECYCLE_S = 3.0
# UCX keeps a connection to every peer that is removed, or added again, while both processes
# live. After so many, or one for each peer if there are more, another initiator begins anew:
# then it registers no more peers for that than it has registered for others.
MOST_FORGOTTEN = 128


class Process(Protocol):
    """One initiator, as seen through its rings and its pidfd."""

    @property
    def generation(self) -> int: ...
    @property
    def pid(self) -> int: ...
    def push(self, record: bytes) -> bool: ...
    def fits(self, record: bytes) -> bool: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


class State(enum.Enum):
    WANTED = "wanted"
    ADDING = "adding"
    ADDED = "added"
    FAILED = "failed"


@dataclass(slots=True)
class Registration:
    """One instance of a peer at `address`, with the one initiator there is."""

    peer: AddPeer
    address: str
    state: State = State.WANTED
    # From when on its registration has not got on, and when it began.
    since: float = 0.0
    sent: float = 0.0
    retry_at: float = 0.0
    detail: str = ""


@dataclass(slots=True)
class Culprit:
    """An address in whose registration initiators died or hung, whatever instance is there."""

    deaths: int = 0
    retry_at: float = 0.0
    detail: str = ""


class Initiators:
    """Feeds the living initiator; `on_gone(now)` hears when there is none any more."""

    def __init__(self, counters: Counters, on_gone: Callable[[float], None]) -> None:
        self._counters = counters
        self._on_gone = on_gone
        self._process: Process | None = None
        self._ready = False
        self._registrations: dict[str, Registration] = {}
        # What the initiator is busy with, also after nobody wants it any more.
        self._adding: Registration | None = None
        self._culprits: dict[str, Culprit] = {}
        self._expected_until = 0.0
        self._ticked = 0.0
        # AddPeers that this process was sent.
        self._additions = 0
        # AddPeer and RemovePeer that the ring had no room for, in order.
        self._unsent: deque[bytes] = deque()
        self._encode: Callable[[ToInitiator], bytes] = msgspec.msgpack.Encoder().encode

    @property
    def alive(self) -> bool:
        return self._process is not None

    @property
    def adding(self) -> bool:
        """Whether it registers a peer, for which it has `REGISTER_S`."""
        return self._adding is not None

    @property
    def usable(self) -> bool:
        return self._process is not None and self._ready

    def expected(self, now: float) -> bool:
        """Whether one is usable, or will be soon because the last was ended on purpose."""
        return self.usable or now < self._expected_until

    # --- the process -------------------------------------------------------------------

    def adopt(self, process: Process, now: float) -> None:
        self.gone(now)
        self._process = process

    def ready(self, now: float) -> None:
        self._ready = True
        for registration in self._registrations.values():
            if registration.state is State.FAILED and now >= registration.retry_at:
                registration.state = State.WANTED
        self._add_next(now)

    def gone(self, now: float) -> None:
        """The process died by itself: it gets no more work. Others may not know it yet."""
        if self._process is not None and self._adding is not None:
            self._blame(self._adding, "an initiator died of it", now, certain=False)
        self._end(now)

    def hangs(self, why: str, now: float) -> None:
        if self._process is not None:
            self._counters.add("initiators_hung")
            self.kill(f"pid {self._process.pid} hangs: {why}", now)

    def renew(self, now: float) -> None:
        """End the initiator if it has forgotten many peers; only while it does nothing."""
        forgotten = self._additions - len(self._registrations)
        if forgotten >= max(MOST_FORGOTTEN, len(self._registrations)):
            self.kill(f"UCX keeps connections to {forgotten} peers that were removed", now)

    def kill(self, why: str, now: float) -> None:
        """End the initiator, because nothing else ends its READs."""
        if self._process is not None:
            log.warning("replacing the initiator: %s", why)
            if self._adding is not None and now - self._adding.since > GIVES_UP_S:
                detail = "an initiator hung meanwhile"
                self._blame(self._adding, detail, now, certain=False)
            self._counters.add("initiators_recycled")
            self._expected_until = now + RECYCLE_S
            self._process.kill()
            self._end(now)

    def _end(self, now: float) -> None:
        if self._process is None:
            return
        self._process.close()
        self._process = None
        self._ready = False
        self._adding = None
        self._additions = 0
        self._unsent.clear()
        for registration in self._registrations.values():
            if now >= registration.retry_at:
                registration.state = State.WANTED
        self._on_gone(now)

    def _blame(self, registration: Registration, why: str, now: float, *, certain: bool) -> None:
        culprit = self._culprits.setdefault(registration.address, Culprit())
        if len(self._culprits) > MAX_CULPRITS:
            del self._culprits[next(iter(self._culprits))]
        culprit.deaths += 1
        lasting = certain or culprit.deaths > 1
        culprit.retry_at = now + (CULPRIT_BACKOFF_S if lasting else REGISTER_BACKOFF_S)
        culprit.detail = why
        registration.state, registration.detail = State.FAILED, why
        registration.retry_at = culprit.retry_at
        log.warning(
            "registering %s at %s: %s; next try in %.0f s",
            registration.peer.agent,
            registration.address,
            why,
            culprit.retry_at - now,
        )

    # --- peers ---------------------------------------------------------------------------

    def add(self, welcome: Welcome, address: str, now: float) -> None:
        """Register the tier that `welcome` describes, unless it is already."""
        if welcome.instance in self._registrations:
            return
        peer = AddPeer(
            welcome.instance,
            welcome.agent,
            welcome.metadata,
            welcome.base,
            welcome.blocks,
            welcome.block_bytes,
        )
        registration = self._registrations[welcome.instance] = Registration(peer, address)
        culprit = self._culprits.get(address)
        if culprit is not None and now < culprit.retry_at:
            registration.state, registration.detail = State.FAILED, culprit.detail
            registration.retry_at = culprit.retry_at
        self._add_next(now)

    def remove(self, instance: str) -> None:
        registration = self._registrations.pop(instance, None)
        if registration is not None and registration.state is not State.WANTED:
            self._send(RemovePeer(instance))

    def registration(self, instance: str, now: float) -> Registration | None:
        """What a READ from `instance` may count on; tries a failed one again in time."""
        registration = self._registrations.get(instance)
        if (
            registration is not None
            and registration.state is State.FAILED
            and now >= registration.retry_at
            and self.usable
        ):
            registration.state = State.WANTED
            self._add_next(now)
        return registration

    def added(self, instance: str, now: float) -> bool:
        """False if the instance is not wanted any more."""
        registration = self._registrations.get(instance)
        wanted = registration is not None and registration is self._adding
        if registration is not None and wanted:
            registration.state = State.ADDED
            self._culprits.pop(registration.address, None)
        self._answered(instance, now)
        return wanted

    def failed(self, instance: str, detail: str, now: float) -> bool:
        """False if the instance is not wanted any more."""
        registration = self._registrations.get(instance)
        wanted = registration is not None and registration.state is not State.WANTED
        if registration is not None and wanted:
            if registration.detail != detail:
                log.warning("cannot register %s with NIXL: %s", registration.peer.agent, detail)
            registration.state, registration.detail = State.FAILED, detail
            registration.retry_at = now + REGISTER_BACKOFF_S
        self._answered(instance, now)
        return wanted

    def read_done(self, now: float) -> None:
        """Whoever registers a peer may have waited for this READ."""
        adding = self._adding
        if adding is not None and now < adding.sent + REGISTER_AT_MOST_S:
            adding.since = now

    def read(self, read: Read) -> bool:
        """False if the ring has no room; the READ has not begun then."""
        record = self._encode(read)
        process = self._process
        return process is not None and process.fits(record) and process.push(record)

    def tick(self, now: float) -> float | None:
        """Send what waits; return when to call again at the latest."""
        self._flush()
        due = [now + 0.01] if self._unsent else []
        paused_s, self._ticked = now - self._ticked, now
        if self._adding is not None:
            if paused_s > PAUSE_S and self._adding.sent < now - paused_s:
                self._adding.since += paused_s
                self._adding.sent += paused_s
            if now - self._adding.since > REGISTER_S:
                hung, self._adding = self._adding, None
                detail = f"it hangs in NIXL for {REGISTER_S:g} s"
                self._blame(hung, detail, now, certain=True)
                self.kill(f"registering {hung.peer.agent}: {detail}", now)
                return None
            due.append(self._adding.since + REGISTER_S)
        return min(due, default=None)

    def _add_next(self, now: float) -> None:
        if not self.usable or self._adding is not None:
            return
        wanted = [r for r in self._registrations.values() if r.state is State.WANTED]
        if wanted:
            # Suspects come last: until it is their turn everybody else is served.
            self._adding = min(wanted, key=lambda registration: self._deaths(registration.address))
            self._adding.state, self._adding.since, self._adding.sent = State.ADDING, now, now
            self._additions += 1
            self._send(self._adding.peer)

    def _answered(self, instance: str, now: float) -> None:
        if self._adding is not None and self._adding.peer.instance == instance:
            self._adding = None
            self._add_next(now)

    def _deaths(self, address: str) -> int:
        culprit = self._culprits.get(address)
        return culprit.deaths if culprit is not None else 0

    def _send(self, message: AddPeer | RemovePeer) -> None:
        if self._process is not None:
            self._unsent.append(self._encode(message))
            self._flush()

    def _flush(self) -> None:
        while self._process is not None and self._unsent:
            if not self._process.push(self._unsent[0]):
                return
            self._unsent.popleft()
