"""What is known of one pull that has not ended."""

import enum
from dataclasses import dataclass
from typing import Protocol

from mpkv.cluster.settings import Integrity
from mpkv.control.checksums import Job
from mpkv.control.destination.session import Failure, Session
from mpkv.control.network.wire import MAX_LEASE_MS, Ask, show_content
from mpkv.messages import MissReason, Pull

SLOT = 8
# A lease outlives its pull by this, so that the last Confirm is not late by a hair.
LEASE_MARGIN_S = 1.0


class Weights(Protocol):
    """What the ledger says of the weights that the engine computes with."""

    @property
    def epoch(self) -> int: ...
    @property
    def content(self) -> bytes: ...


def outdated(weights: Weights, pull: Pull) -> Failure | None:
    """Why what `pull` brings cannot be for the weights that there are now; None if it may."""
    if pull.epoch != weights.epoch:
        return Failure(MissReason.CACHE_RESET, "the cache was reset since it began")
    content = weights.content
    if not content or pull.content != content:
        was, now = show_content(pull.content), show_content(content)
        return Failure(MissReason.CONTENT, f"it began for content {was}, now it is {now}")
    return None


class Step(enum.Enum):
    """What a pull waits for."""

    WAITING = "its session"
    QUEUED = "earlier pulls from the same peer"
    ASKED = "the grant"
    GRANTED = "NIXL's registration"
    READING = "the READ"
    CONFIRMING = "the confirmation"
    CHECKING = "the checksums of what landed"
    OVER = "nothing"


@dataclass(slots=True, eq=False)
class OpenPull:
    """`keys` and `limit` are how many keys it asks for and how many slots it has."""

    wanted: Pull
    session: Session
    deadline: float
    keys: int
    limit: int
    step: Step = Step.WAITING
    asks: int = 0
    ask: int = 0
    # The instance at which its ask takes one of the turns there are.
    asked_of: str = ""
    lease: int = 0
    read: int = 0
    indexes: bytes = b""
    remote: bytes = b""
    slots: bytes = b""
    granted_at: float = 0.0
    read_at: float = 0.0
    # The checksums of what landed, and those that the source has sent.
    job: Job | None = None
    sent: bytes = b""

    def as_ask(self, now: float, integrity: Integrity) -> Ask:
        """What its source is asked for now."""
        lease_ms = min(int((self.deadline - now + LEASE_MARGIN_S) * 1000), MAX_LEASE_MS)
        wanted = self.wanted
        return Ask(
            self.session.instance,
            self.ask,
            wanted.groups,
            self.limit,
            lease_ms,
            wanted.content,
            integrity,
        )
