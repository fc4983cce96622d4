"""Whose turn it is to be given room in the tier, and how much."""

from collections import deque
from collections.abc import Iterator

from mpkv.engine.booked_pull import BookedPull
from mpkv.engine.claims import Claims
from mpkv.memory import LANDING, Ledger

# The keys of one record; a pull for more takes several, whatever there is room for.
RECORD_KEYS = 65_536


class Turns:
    """Pulls that wait for room: small ones and large ones apart, each in order."""

    def __init__(self, ledger: Ledger, claims: Claims) -> None:
        self._ledger = ledger
        self._claims = claims
        self._small: deque[BookedPull] = deque()
        self._large: deque[BookedPull] = deque()

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

    def room(self, pull: BookedPull, wanted: int, longest: int) -> tuple[bytes, bytes] | None:
        """Slots for `pull`, which wants so many and whose record may have so many keys, and the
        keys evicted for them; None if it has to wait on."""
        claims, small_wait = self._claims, bool(self._small)
        claims.keep(pull, small_wait)
        count = min(wanted, claims.room(pull, small_wait))
        if pull.large and pull.asker.chain:
            count = min(count, longest, RECORD_KEYS)
            least = min(wanted, claims.least)
        else:
            least = wanted
        allocated = None
        if count >= least:
            allocated = self._ledger.allocate(count, LANDING)
        if allocated is None and count >= least and least < count:
            count = min(count, claims.available())
            if count >= least:
                allocated = self._ledger.allocate(count, LANDING)
        return allocated
