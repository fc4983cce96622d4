"""One session with one address, and what its life needs of others."""

import enum
import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mpkv.control.network.wire import ToSource, Welcome
from mpkv.messages import MissReason

FIRST_BACKOFF_S = 0.2


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
    """`instance` is whom the last Welcome named; it stays while the session is interrupted.
    While it is greeted without a route, its name is being looked up."""

    address: str
    configured: bool
    phase: Phase = Phase.IDLE
    # The numeric address that `address` led to, at the last try.
    endpoint: str = ""
    route: bytes = b""
    instance: str = ""
    # What the last Welcome said of its memory: agent, metadata, base and blocks.
    memory: tuple[str, bytes, int, int] = ("", b"", 0, 0)
    node: str = ""
    greet_until: float = 0.0
    # What was looked up before this time may be where the peer was, and not where it is.
    doubted_at: float = math.inf
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
    """The outgoing socket. Endpoints are numeric: `10.0.0.1:7710`, `[::1]:7710`."""

    def connect(self, endpoint: str) -> bytes:
        """Return a route never used before; raises OSError if that is impossible."""

    def disconnect(self, endpoint: str) -> None:
        """End every connection to `endpoint`."""

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


class ContentSource(Protocol):
    @property
    def content(self) -> bytes: ...


class NameSource(Protocol):
    """Looks names up without ever making the caller wait."""

    def find(self, host: str, now: float) -> str | OSError | None:
        """The numeric address of `host`; why there is none; None while that is not known."""

    def renewed(self, host: str, since: float, now: float) -> str | OSError | None:
        """As `find`, but only what was looked up at `since`, which has come, or later."""
