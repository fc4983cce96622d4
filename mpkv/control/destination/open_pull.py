"""What is known of one pull that has not ended.

A pull is carried out in parts, one after the other: each is an ask of one source, and what that
grants. What a part does not bring is asked for again, of the same source if it had only no
room, or of the next one.
"""

import array
import enum
import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from mpkv.cluster.settings import Integrity
from mpkv.control.checksums import Job
from mpkv.control.destination.session import Failure, Session
from mpkv.control.network.wire import MAX_LEASE_MS, Ask, show_content
from mpkv.messages import KeyGroup, MissReason, Pull

SLOT = 8
INDEX = 4
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
    ROOM = "room at the peer"
    ASKED = "the grant"
    GRANTED = "NIXL's registration"
    READING = "the READ"
    CONFIRMING = "the confirmation"
    CHECKING = "the checksums of what landed"
    OVER = "nothing"


UNGRANTED = (Step.WAITING, Step.QUEUED, Step.ROOM, Step.ASKED)


@dataclass(slots=True)
class Part:
    """One ask, and what came of it; `indexes` count through the keys of the whole pull."""

    asks: int = 0
    ask: int = 0
    # The instance at which its ask takes one of the turns there are.
    asked_of: str = ""
    lease: int = 0
    read: int = 0
    indexes: bytes = b""
    remote: bytes = b""
    slots: bytes = b""
    # Whether the source holds more and only had no room for it.
    short: bool = False
    granted_at: float = 0.0
    read_at: float = 0.0
    # The checksums of what landed, and those that the source has sent.
    job: Job | None = None
    sent: bytes = b""


@dataclass(slots=True, eq=False)
class OpenPull:
    """`groups` are the keys not brought yet; `sources` the addresses that may be asked for
    them when the present one has given what it has."""

    wanted: Pull
    session: Session
    deadline: float
    key_size: int
    sources: deque[str]
    step: Step = Step.WAITING
    part: Part = field(default_factory=Part)
    groups: tuple[KeyGroup, ...] = ()
    # Of each group: how many keys have been brought.
    cuts: list[int] = field(default_factory=list)
    brought: int = 0
    parts: int = 0
    # The first reason for which something was not given.
    why: Failure | None = None
    waited_for_room: int = 0

    def __post_init__(self) -> None:
        self.groups = self.wanted.groups
        self.cuts = [0] * len(self.groups)

    @property
    def keys(self) -> int:
        """How many keys are left."""
        return sum(len(group.keys) for group in self.groups) // self.key_size

    @property
    def limit(self) -> int:
        """How many slots are left."""
        return len(self.wanted.slots) // SLOT - self.brought

    @property
    def divisible(self) -> bool:
        """Whether what is left after a part is a prompt's rest: a window is of use only whole,
        and groups of unequal steps do not all end where a part ends."""
        steps = {group.tokens_per_key for group in self.groups}
        return len(steps) == 1 and not any(group.window for group in self.groups)

    def as_ask(self, now: float, integrity: Integrity) -> Ask:
        """What its source is asked for now."""
        lease_ms = min(int((self.deadline - now + LEASE_MARGIN_S) * 1000), MAX_LEASE_MS)
        return Ask(
            self.session.instance,
            self.part.ask,
            self.groups,
            self.limit,
            lease_ms,
            self.wanted.content,
            integrity,
        )

    def grant(self, indexes: bytes) -> None:
        """The ask got these of its keys."""
        slots = len(indexes) // INDEX
        first = self.brought * SLOT
        self.part.slots = self.wanted.slots[first : first + slots * SLOT]
        self.part.indexes = indexes
        if any(self.cuts):
            self.part.indexes = array.array("I", self._in_whole(indexes)).tobytes()

    def lacks(self) -> bool:
        """Whether the part leaves keys for which there are slots."""
        got = len(self.part.indexes) // INDEX
        return got < min(self.keys, self.limit)

    def missing(self) -> MissReason | None:
        """Why the part, the last one, leaves keys."""
        got = len(self.part.indexes) // INDEX
        if got >= (self.keys if self.divisible else min(self.keys, self.limit)):
            return None
        if got >= self.limit:
            return MissReason.NO_SPACE
        return self.why.reason if self.why is not None else MissReason.NOT_HELD

    def end_part(self) -> None:
        """What the part got has been brought; `groups` is what is left then."""
        self.parts += 1
        self.brought += len(self.part.slots) // SLOT
        if self.divisible:
            got = memoryview(self.part.indexes).cast("I")
            first = 0
            for n, group in enumerate(self.wanted.groups):
                count = len(group.keys) // self.key_size
                # Each group got leading keys, ascending.
                reached = max((i for i in _ends(got, first, first + count)), default=-1)
                self.cuts[n] = max(self.cuts[n], reached + 1)
                first += count
            self.groups = tuple(
                KeyGroup(group.keys[cut * self.key_size :], group.tokens_per_key, group.window)
                for group, cut in zip(self.wanted.groups, self.cuts, strict=True)
            )
        self.part = Part()

    def note(self, why: Failure) -> None:
        self.why = self.why or why

    def _in_whole(self, indexes: bytes) -> Iterable[int]:
        """Indexes of the ask's keys, as indexes of the pull's."""
        counts = [len(group.keys) // self.key_size for group in self.wanted.groups]
        asked = itertools.accumulate(
            (count - cut for count, cut in zip(counts, self.cuts, strict=True)), initial=0
        )
        shifts = itertools.accumulate(self.cuts)
        bounds = list(zip(list(asked)[1:], shifts, strict=True))
        group = 0
        for index in memoryview(indexes).cast("I"):
            while index >= bounds[group][0]:
                group += 1
            yield index + bounds[group][1]


def _ends(ascending: memoryview, first: int, last: int) -> Iterable[int]:
    """The last of `ascending` that lies in [first, last), less `first`; nothing if none does."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] < last:
            low = middle + 1
        else:
            high = middle
    if low and ascending[low - 1] >= first:
        yield ascending[low - 1] - first
