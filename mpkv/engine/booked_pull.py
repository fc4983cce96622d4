"""What the scheduler's side keeps of pulls: who waits, for what, and what was sent for it.

A *waiter* is a request. It waits for *spans* of pulls: its own, and those of others that were
on their way before. A *pull* asks a node for a run of keys, by one *record* after the other, as
there is room for them.

*Positions* count the keys of a prompt from its first one. Equal keys have equal prefixes, so a
key is at one position in all prompts. With several KV-cache groups the keys are not taken apart:
all of them are position 0.
"""

from dataclasses import dataclass, field
from typing import Protocol

from mpkv.messages import KeyGroup, MissReason, Pull

SLOT_BYTES = 8


class PullMeter(Protocol):
    """Who counts what becomes of pulls; times are seconds from a pull's start."""

    def lookup_ended(self, seconds: float) -> None: ...

    def pulled(self, peer: str, blocks: int, granted_s: float, confirmed_s: float) -> None: ...

    def missed(self, peer: str, reason: MissReason, detail: str) -> None:
        """A pull has ended without blocks."""

    def not_given(self, peer: str, reason: MissReason, blocks: int, detail: str) -> None:
        """So many blocks were asked for and will not come."""


@dataclass(slots=True, eq=False)
class Waiter:
    """A request, from its start until it is over; `peer` and `also` are as in `Pull`."""

    request: str
    peer: str
    also: tuple[str, ...]
    groups: tuple[KeyGroup, ...]
    keys: bytes
    # Keys that are here already and that the wanted ones follow, packed.
    present: bytes
    epoch: int
    started: float
    deadline: float
    # Whether it is one run of keys that serves up to any of them.
    chain: bool
    # Positions: its keys, as far as there is hope for them.
    first: int
    end: int
    # Keys that do not fit the tier, not yet counted.
    cut: int = 0
    spans: "list[Span]" = field(default_factory=list)
    holds: "list[Hold]" = field(default_factory=list)
    kept: bool = False
    # What came by the pulls that it waited on, packed.
    brought: list[bytes] = field(default_factory=list)
    # The request no longer waits: all has come, it gave up, or nothing ever will.
    settled: bool = False
    # It was settled without blocks.
    missed: bool = False

    def part(self, start: int, stop: int, key_size: int) -> tuple[tuple[KeyGroup, ...], bytes]:
        """Its keys at these positions, as groups and packed."""
        if not self.chain or (stop - start) * key_size == len(self.keys):
            return self.groups, self.keys
        keys = self.keys[(start - self.first) * key_size : (stop - self.first) * key_size]
        return (KeyGroup(keys, self.groups[0].tokens_per_key, 0),), keys

    def asks_of(self, pull: "BookedPull") -> bool:
        """Whether it names a rank of the node that `pull` asks."""
        return self.peer == pull.asker.peer or self.peer in pull.asker.also


@dataclass(slots=True, eq=False)
class BookedPull:
    """Asks the source of `asker` for the keys from `first` to `end`; in `given` it is known
    until where they have come, without a gap."""

    asker: Waiter
    groups: tuple[KeyGroup, ...]
    keys: bytes
    first: int
    end: int
    # How many blocks that is, and how many have come.
    count: int
    started: float
    large: bool
    # A pull for the same from the same node has failed.
    again: bool = False
    # There was no room for it, at its turn or before that.
    waited: bool = False
    given: int = 0
    blocks: int = 0
    record: "Record | None" = None
    spans: "list[Span]" = field(default_factory=list)
    holds: "list[Hold]" = field(default_factory=list)
    # Why it counts as failed, though its record may still be open.
    judged: MissReason | None = None
    over: bool = False

    def __post_init__(self) -> None:
        self.given = self.first


@dataclass(slots=True, eq=False)
class Span:
    """What `waiter` hopes to get by `pull`."""

    waiter: Waiter
    pull: BookedPull
    start: int
    stop: int


@dataclass(slots=True, eq=False)
class Hold:
    """Blocks that stay pinned until so many requests have looked at them or are over."""

    slots: bytes
    pull: BookedPull
    users: int = 0


@dataclass(slots=True, eq=False)
class Record:
    """One `Pull` on a ring, for the keys of `pull` from `first` on; `slots` are those that
    nothing has come into yet."""

    number: int
    pull: BookedPull
    peer: str
    groups: tuple[KeyGroup, ...]
    keys: bytes
    first: int
    slots: bytes
    generation: int
    started: float
    deadline: float
    # A byte for each of its keys: 1 when it has come.
    seen: bytearray
    # What the weights were when it was sent.
    content: bytes
    blocks: int = 0
    granted: float = 0.0
    confirmed: float = 0.0


def as_message(record: Record) -> Pull:
    asker = record.pull.asker
    return Pull(
        record.number,
        asker.request,
        record.peer,
        record.groups,
        record.slots,
        asker.epoch,
        record.started,
        record.deadline,
        asker.also,
        record.content,
    )
