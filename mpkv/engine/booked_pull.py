"""What the scheduler's side keeps of one pull, and who counts what becomes of it."""

from dataclasses import dataclass
from typing import Protocol

from mpkv.messages import KeyGroup, MissReason, Pull

SLOT_BYTES = 8


class PullMeter(Protocol):
    """Who counts what becomes of pulls; times are seconds from a pull's start."""

    def lookup_ended(self, seconds: float) -> None: ...

    def pulled(self, peer: str, blocks: int, granted_s: float, confirmed_s: float) -> None: ...

    def missed(self, peer: str, reason: MissReason, detail: str) -> None: ...


@dataclass(slots=True, eq=False)
class BookedPull:
    """A pull from its request until nothing of it is left; `slots` are its own."""

    number: int
    request: str
    peer: str
    groups: tuple[KeyGroup, ...]
    keys: bytes
    count: int
    # Keys that are here already and that the pulled ones follow, packed.
    present: bytes
    epoch: int
    started: float
    deadline: float
    slots: bytes = b""
    generation: int = 0
    # The request no longer waits: it ended, gave up at its deadline, or never will.
    settled: bool = False
    # It was settled without blocks.
    missed: bool = False


def as_message(pull: BookedPull) -> Pull:
    return Pull(
        pull.number,
        pull.request,
        pull.peer,
        pull.groups,
        pull.slots,
        pull.epoch,
        pull.started,
        pull.deadline,
    )
