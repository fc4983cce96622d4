"""The process that READs: which one it is, and which peers it has registered.

There is at most one initiator. While it is missing or not ready, no pull is begun. A new
one knows no peer; all that are wanted are added again.
"""

import enum
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from mpkv.control.wire import Welcome
from mpkv.memory import Counters
from mpkv.messages import AddPeer, Read, RemovePeer, ToInitiator

log = logging.getLogger("mpkv.control")

# Registering takes milliseconds, and gives up by itself after seconds. An initiator that
# hangs in it serves no other peer either; the one at fault must not hang the next as well.
REGISTER_S = 15.0
REGISTER_BACKOFF_S = 1.0
HANGING_BACKOFF_S = 120.0


class Process(Protocol):
    """One initiator, as seen through its rings and its pidfd."""

    @property
    def generation(self) -> int: ...
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
    """One instance of a peer, with the one initiator there is."""

    peer: AddPeer
    state: State = State.WANTED
    since: float = 0.0
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
        # AddPeer and RemovePeer that the ring had no room for, in order.
        self._unsent: deque[bytes] = deque()
        self._encode: Callable[[ToInitiator], bytes] = msgspec.msgpack.Encoder().encode

    @property
    def alive(self) -> bool:
        return self._process is not None

    @property
    def usable(self) -> bool:
        return self._process is not None and self._ready

    # --- the process -------------------------------------------------------------------

    def adopt(self, process: Process, now: float) -> None:
        self.gone(now)
        self._process = process

    def ready(self, now: float) -> None:
        self._ready = True
        for registration in self._registrations.values():
            if now >= registration.retry_at:
                self._add(registration, now)

    def gone(self, now: float) -> None:
        """The process is dead or dying: it gets no more work. Others may not know it yet."""
        if self._process is None:
            return
        self._process.close()
        self._process = None
        self._ready = False
        self._unsent.clear()
        for registration in self._registrations.values():
            if now >= registration.retry_at:
                registration.state = State.WANTED
        self._on_gone(now)

    def kill(self, why: str, now: float) -> None:
        """End the initiator, because nothing else ends its READs."""
        if self._process is not None:
            log.warning("replacing the initiator: %s", why)
            self._counters.add("initiators_recycled")
            self._process.kill()
            self.gone(now)

    # --- peers ---------------------------------------------------------------------------

    def add(self, welcome: Welcome, now: float) -> None:
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
        registration = self._registrations[welcome.instance] = Registration(peer)
        if self.usable:
            self._add(registration, now)

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
            self._add(registration, now)
        return registration

    def added(self, instance: str) -> bool:
        """False if the instance is not wanted any more."""
        registration = self._registrations.get(instance)
        if registration is None or registration.state is not State.ADDING:
            return False
        registration.state = State.ADDED
        return True

    def failed(self, instance: str, detail: str, now: float) -> bool:
        """False if the instance is not wanted any more."""
        registration = self._registrations.get(instance)
        if registration is None or registration.state is State.WANTED:
            return False
        if registration.detail != detail:
            log.warning("cannot register %s with NIXL: %s", registration.peer.agent, detail)
        registration.state, registration.detail = State.FAILED, detail
        registration.retry_at = now + REGISTER_BACKOFF_S
        return True

    def read(self, read: Read) -> bool:
        """False if the ring has no room; the READ has not begun then."""
        record = self._encode(read)
        process = self._process
        return process is not None and process.fits(record) and process.push(record)

    def tick(self, now: float) -> float | None:
        """Send what waits; return when to call again at the latest."""
        self._flush()
        adding = [r for r in self._registrations.values() if r.state is State.ADDING]
        due = [now + 0.01] if self._unsent else []
        if adding:
            # Peers are registered in turn: the first of those that wait is being tried.
            first = min(adding, key=lambda registration: registration.since)
            if now - first.since > REGISTER_S:
                first.state, first.retry_at = State.FAILED, now + HANGING_BACKOFF_S
                first.detail = f"it hangs in NIXL for {REGISTER_S:g} s"
                self.kill(f"registering {first.peer.agent}: {first.detail}", now)
                return None
            due.append(first.since + REGISTER_S)
        return min(due, default=None)

    def _add(self, registration: Registration, now: float) -> None:
        registration.state, registration.since = State.ADDING, now
        self._send(registration.peer)

    def _send(self, message: AddPeer | RemovePeer) -> None:
        if self._process is not None:
            self._unsent.append(self._encode(message))
            self._flush()

    def _flush(self) -> None:
        while self._process is not None and self._unsent:
            if not self._process.push(self._unsent[0]):
                return
            self._unsent.popleft()
