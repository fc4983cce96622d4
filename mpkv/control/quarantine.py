"""Slots that a READ may still write after its pull has failed.

Only SUCCESS, or the death of the initiator, ends a READ. Until then its slots are the
engine's to keep untouched, and here is remembered whose they are.
"""

from collections import Counter
from dataclasses import dataclass

# How long after its pull's deadline a READ may go on before its initiator is ended.
GRACE_S = 2.0
# Of the tier: how much suspects may hold before the initiator is ended at once. READs of
# cancelled pulls do not count: those are healthy and end by themselves.
SHARE = 8


@dataclass(slots=True, frozen=True)
class Held:
    """`suspect`: the READ failed or timed out, so its peer gets no new pulls."""

    pull: int
    address: str
    slots: int
    due: float
    suspect: bool


class Quarantine:
    """The READs of failed pulls, by the READ's number."""

    def __init__(self, blocks: int) -> None:
        self._most = max(blocks // SHARE, 1)
        self._held: dict[int, Held] = {}
        self._slots = 0
        self._suspects: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, read: int, held: Held) -> None:
        self._held[read] = held
        self._slots += held.slots if held.suspect else 0
        if held.suspect:
            self._suspects[held.address] += 1

    def suspects(self, address: str) -> bool:
        return address in self._suspects

    def over(self, read: int) -> int | None:
        """The READ has ended: the pull whose slots are free again; None if not held."""
        held = self._held.pop(read, None)
        if held is None:
            return None
        self._slots -= held.slots if held.suspect else 0
        if held.suspect:
            self._suspects[held.address] -= 1
            if not self._suspects[held.address]:
                del self._suspects[held.address]
        return held.pull

    def all_over(self) -> list[int]:
        """Every READ has ended: the pulls whose slots are free again."""
        pulls = [held.pull for held in self._held.values()]
        self._held.clear()
        self._suspects.clear()
        self._slots = 0
        return pulls

    def overdue(self, now: float) -> str | None:
        """Why the initiator must be ended now; None if it need not be."""
        if self._slots > self._most:
            return f"unfinished READs of failed pulls hold {self._slots} blocks"
        late = next((held for held in self._held.values() if now >= held.due), None)
        if late is None:
            return None
        return f"a READ from {late.address} goes on {GRACE_S:g} s after its deadline"

    def next_due(self) -> float:
        """When the first READ held here will be overdue; there must be one."""
        return min(held.due for held in self._held.values())
