"""Slots that a READ may still write after its pull has failed.

Only SUCCESS, or the death of the initiator, ends a READ. Until then its slots are the
engine's to keep untouched, and here is remembered whose they are.
"""

from collections import Counter
from dataclasses import dataclass, replace

from mpkv.control.destination.open_pull import SLOT, OpenPull

# How long after its pull's deadline a READ may go on before its initiator is ended.
GRACE_S = 2.0
# While one READ has failed, how long others go on being posted; then they wait for the next
# initiator, so that the failed one's slots come back soon.
RECYCLE_SOON_S = 1.0
# Of the tier: how much suspects may hold before the initiator is ended at once. READs of
# cancelled pulls do not count: those are healthy and end by themselves.
SHARE = 8


@dataclass(slots=True, frozen=True)
class Held:
    """`suspect`: the READ failed or timed out, so its peer gets no new pulls. `broken_at`,
    not 0.0: it failed, so nothing but the end of the initiator ends it."""

    pull: int
    peer: str
    instance: str
    slots: int
    due: float
    suspect: bool
    broken_at: float


class Quarantine:
    """The READs of failed pulls, by the READ's number."""

    def __init__(self, blocks: int) -> None:
        self._most = max(blocks // SHARE, 1)
        self._held: dict[int, Held] = {}
        self._slots = 0
        self._suspects: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, pull: OpenPull, *, suspect: bool, broken_at: float) -> int:
        """`pull` has failed during its READ; how many slots it keeps."""
        slots = len(pull.part.slots) // SLOT
        self._held[pull.part.read] = Held(
            pull.wanted.pull,
            pull.session.label,
            pull.session.instance,
            slots,
            due=pull.deadline + GRACE_S,
            suspect=suspect,
            broken_at=broken_at,
        )
        if suspect:
            self._slots += slots
            self._suspects[pull.session.instance] += 1
        return slots

    def suspects(self, instance: str) -> bool:
        return instance in self._suspects

    def broken(self, read: int, now: float) -> None:
        """A READ that was only late has failed."""
        held = self._held.get(read)
        if held is not None and not held.broken_at:
            self._held[read] = replace(held, broken_at=now)

    def recycles_soon(self, now: float) -> bool:
        """Whether the initiator is about to be ended, and should begin nothing any more."""
        return any(
            held.broken_at and now > held.broken_at + RECYCLE_SOON_S for held in self._held.values()
        )

    def over(self, read: int) -> int | None:
        """The READ has ended: the pull whose slots are free again; None if not held."""
        held = self._held.pop(read, None)
        if held is None:
            return None
        self._slots -= held.slots if held.suspect else 0
        if held.suspect:
            self._suspects[held.instance] -= 1
            if not self._suspects[held.instance]:
                del self._suspects[held.instance]
        return held.pull

    def all_over(self) -> list[int]:
        """Every READ has ended: the pulls whose slots are free again."""
        pulls = [held.pull for held in self._held.values()]
        self._held.clear()
        self._suspects.clear()
        self._slots = 0
        return pulls

    def verdict(self, now: float, *, others_read: bool) -> str | None:
        """Why the initiator must be ended now; None if it need not be. `others_read`: it has
        READs for which pulls still wait."""
        if self._slots > self._most:
            return f"unfinished READs of failed pulls hold {self._slots} blocks"
        late = next((held for held in self._held.values() if now >= held.due), None)
        if late is None:
            broken = any(held.broken_at for held in self._held.values())
            return "a READ failed, and nothing else ends it" if broken and not others_read else None
        return f"a READ from {late.peer} goes on {GRACE_S:g} s after its deadline"

    def next_due(self) -> float:
        """When the first READ held here will be overdue; there must be one."""
        return min(held.due for held in self._held.values())
