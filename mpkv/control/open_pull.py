"""What is known of one pull that has not ended."""

import enum
from dataclasses import dataclass

from mpkv.control.session import Session
from mpkv.messages import Pull

SLOT = 8


class Step(enum.Enum):
    """What a pull waits for."""

    WAITING = "its session"
    QUEUED = "earlier pulls from the same peer"
    ASKED = "the grant"
    GRANTED = "NIXL's registration"
    READING = "the READ"
    CONFIRMING = "the confirmation"
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
