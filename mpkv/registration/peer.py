"""What an initiator keeps of one peer."""

import enum
from collections import deque
from dataclasses import dataclass, field

from mpkv.messages import Read


class Stage(enum.Enum):
    ADDING = enum.auto()
    """With the registrar, or its warming READ is open. READs wait."""
    READY = enum.auto()
    DOWN = enum.auto()
    """Not registered, but READs from before are open, so its agent has to stay."""


@dataclass(slots=True, eq=False)
class Peer:
    """One life of a peer's target, keyed by `instance`.

    `tiers` are the handles by which each lane's agent knows its tier, none before they were
    prepared; `old_tiers` those of before it was added anew. `open_reads` counts READs that
    are posted and did not end in success; while it is not zero the agent is not removed.
    `leaving` says that RemovePeer came.
    """

    instance: str
    agent: str
    base: int
    blocks: int
    asked: float
    stage: Stage = Stage.ADDING
    tiers: tuple[int, ...] = ()
    old_tiers: list[tuple[int, ...]] = field(default_factory=list)
    open_reads: int = 0
    leaving: bool = False
    waiting: deque[Read] = field(default_factory=deque)
