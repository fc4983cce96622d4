"""Whose turn it is to be given room in the tier, and how much."""

from collections import deque
from collections.abc import Iterator

from mpkv.engine.booked_pull import BookedPull
from mpkv.engine.claims import Claims
from mpkv.memory import LANDING, Ledger

# In one record, which then fits its ring whatever the size of keys; a pull for more takes several.
RECORD_KEYS = 32_768


class Turns:
    """Pulls that wait for room: small ones and large ones apart, each in order."""

    def __init__(self, ledger: Ledger, claims: Claims) -> None:
        self._ledger = ledger
        self._claims = claims
        self._small: deque[BookedPull] = deque()
        self._large: deque[BookedPull] = deque()
        # It has a part, and wants more. While there is one, others get all they want or nothing:
        # two that wait for more could wait for each other.
        self._partial: BookedPull | None = None

    def __iter__(self) -> Iterator[BookedPull]:
        yield from self._small
        yield from self._large

    def __len__(self) -> int:
        return len(self._small) + len(self._large)

    def is_large(self, count: int) -> bool:
        """Whether a pull of `count` blocks is one that takes what there is, part by part."""
        return count > min(self._claims.most, RECORD_KEYS)

    def add(self, pull: BookedPull) -> None:
        (self._large if pull.large else self._small).append(pull)

    def add_first(self, pull: BookedPull) -> None:
        (self._large if pull.large else self._small).appendleft(pull)

    def remove(self, pull: BookedPull) -> None:
        (self._large if pull.large else self._small).remove(pull)

    def firsts(self) -> list[BookedPull]:
        return [queue[0] for queue in (self._small, self._large) if queue]

    def is_last(self, pull: BookedPull) -> bool:
        """Whether `pull`, which finds no room, is done with what it has: others wait for that,
        and no pull will make room for it."""
        return pull.blocks > 0 and len(self) > 1 and self._claims.is_alone(pull)

    def room(self, pull: BookedPull, wanted: int) -> tuple[bytes, bytes] | None:
        """Slots for `pull`, which wants so many, and the keys evicted for them; None if it has
        to wait on."""
        claims, small_wait = self._claims, bool(self._small)
        claims.keep(pull, small_wait)
        count, least = min(wanted, claims.room(pull, small_wait)), wanted
        if pull.large and pull.asker.chain:
            count = min(count, RECORD_KEYS)
            if self._may_be_partial(pull):
                least = min(wanted, claims.least)
        if count < least:
            return None
        allocated = self._ledger.allocate(count, LANDING)
        if allocated is None and least < count:
            count = min(count, claims.available())
            allocated = self._ledger.allocate(count, LANDING) if count >= least else None
        if allocated is not None and self._may_be_partial(pull):
            self._partial = pull if count < wanted else None
        return allocated

    def _may_be_partial(self, pull: BookedPull) -> bool:
        return self._partial in (None, pull) or self._partial.over
