"""Which blocks an ask gets: found and pinned in the ledger, without asking the engine.

All groups of an ask start at one token. What they get ends at one token too, the *end*:
the farthest at which every full-attention group has all of its keys from the start, and
every windowed group the last `window` keys (or all, if it has not that many).
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from mpkv.messages import KeyGroup

SLOT = 8
MISS = b"\xff" * SLOT
# A window found by looking may be gone when it is pinned; each retry ends earlier.
MAX_RETRIES = 8
# Runs of held keys looked at, and keys pinned again, before an ask gets nothing. Honest asks
# need a few for each group; without a bound one ask could cost a second.
MAX_WORK = 8192


class PinTable(Protocol):
    """What a grant needs of the ledger."""

    @property
    def key_size(self) -> int: ...
    def contains_many(self, keys: bytes) -> bytes: ...
    def pin_many(self, keys: bytes) -> bytes: ...
    def pin_prefix(self, keys: bytes) -> bytes: ...
    def unpin_many(self, slots: bytes) -> int: ...


class Granted(NamedTuple):
    """`runs` are (first index, count) over the keys of all groups, `slots` their pins; `end` is
    the token up to which they reach."""

    slots: bytes
    runs: list[tuple[int, int]]
    end: int


def most_blocks(groups: tuple[KeyGroup, ...], key_size: int) -> int:
    """How many blocks `groups` get if all that they ask for is held."""
    counts = [(len(group.keys) // key_size, group.window) for group in groups]
    return sum(min(count, window or count) for count, window in counts)


def holds_more(ledger: PinTable, groups: tuple[KeyGroup, ...], end: int) -> bool:
    """Whether the first keys from the token `end` on are held, for all groups; they have no
    windows."""
    size = ledger.key_size
    firsts = [-(-end // group.tokens_per_key) * size for group in groups]
    following = [
        group.keys[first : first + size] for group, first in zip(groups, firsts, strict=True)
    ]
    held = [bool(key) and ledger.contains_many(key) == b"\x01" for key in following]
    return bool(held) and all(held)


def pin_groups(ledger: PinTable, groups: tuple[KeyGroup, ...], limit: int) -> Granted:
    """Pin at most `limit` blocks for `groups`, each block once for a group: keys of one group
    are expected to differ."""
    parts = []
    first = 0
    for group in groups:
        count = len(group.keys) // ledger.key_size
        # The asker has all that it needs of a group with no keys.
        if count:
            parts.append(_Part(ledger, group, first, count))
        first += count
    full = [part for part in parts if not part.group.window]
    windowed = [part for part in parts if part.group.window]
    end = min((part.pin_prefix(limit) for part in full), default=_longest(windowed))
    end = _end_within(parts, end, limit)
    for part in windowed:
        part.look(end)
    end = _pin_windows(windowed, end)
    for part in full:
        part.keep_until(end)
    parts = [part for part in parts if part.slots]
    return Granted(
        b"".join(part.slots for part in parts),
        [run for part in parts for run in part.runs()],
        end,
    )


def _longest(windowed: list["_Part"]) -> int:
    return min((part.count * part.group.tokens_per_key for part in windowed), default=0)


def _end_within(parts: list["_Part"], end: int, limit: int) -> int:
    """The farthest end, at most `end`, that needs no more than `limit` blocks."""
    end = min([end, *(part.count * part.group.tokens_per_key for part in parts)])

    def needed(tokens: int) -> int:
        return sum(part.needs(tokens) for part in parts)

    if needed(end) <= limit:
        return end
    return bisect.bisect_right(range(1, end + 1), limit, key=needed)


def _pin_windows(windowed: list["_Part"], end: int) -> int:
    """Pin every window at the farthest end that has them all; return that end, 0 if none."""
    work = MAX_WORK
    for _ in range(MAX_RETRIES):
        end, work = _settle(windowed, end, work)
        # The first try may pin as much as the asker has room for.
        if not end or work <= 0:
            return 0
        if all(part.pin_window(end) for part in windowed):
            return end
        for part in windowed:
            part.release()
        work -= sum(part.needs(end) for part in windowed)
    return 0


def _settle(windowed: list["_Part"], end: int, work: int) -> tuple[int, int]:
    """Walk `end` down until every window is held; return it, and what is left of `work`."""
    before = -1
    while end != before:
        before = end
        for part in windowed:
            end, work = part.walk_down(end, work)
    return end, work


@dataclass(slots=True)
class _Part:
    """One group of an ask, and what is pinned of it."""

    ledger: PinTable
    group: KeyGroup
    first: int
    count: int
    positions: Sequence[int] = ()
    slots: bytes = b""
    # One byte for each key: whether it was held when last looked at.
    held: bytearray = field(default_factory=bytearray)

    def needs(self, end: int) -> int:
        return min(self._keys_until(end), self.group.window or self.count)

    def pin_prefix(self, limit: int) -> int:
        """Pin leading keys; return the token at which they end."""
        size = self.ledger.key_size
        count = min(self.count, limit)
        keys = self.group.keys[: count * size]
        self.slots = self.ledger.pin_prefix(keys)
        pinned = len(self.slots) // SLOT
        self.positions = range(pinned)
        missed = keys[pinned * size : (pinned + 1) * size]
        # A repeated key ends what the ledger pins.
        if missed and keys.find(missed, 0, pinned * size) >= 0:
            self.release()
            positions, unique = _unique(keys, size)
            self.slots = self.ledger.pin_prefix(unique)
            pinned_unique = len(self.slots) // SLOT
            self.positions = positions[:pinned_unique]
            pinned = positions[pinned_unique] if pinned_unique < len(positions) else count
        return pinned * self.group.tokens_per_key

    def keep_until(self, end: int) -> None:
        """Unpin what lies beyond `end`."""
        keep = bisect.bisect_left(self.positions, self._keys_until(end))
        if keep < len(self.positions):
            self.ledger.unpin_many(self.slots[keep * SLOT :])
            self.slots = self.slots[: keep * SLOT]
            self.positions = self.positions[:keep]

    def look(self, end: int) -> None:
        """Find which keys up to `end` are held, without pinning them."""
        keys = self.group.keys[: self._keys_until(end) * self.ledger.key_size]
        self.held = bytearray(self.ledger.contains_many(keys))

    def walk_down(self, end: int, work: int) -> tuple[int, int]:
        """The farthest token, at most `end`, at which this group has its window; and what is
        left of `work`."""
        until = self._keys_until(end)
        while work > 0:
            work -= 1
            last = self.held.rfind(1, 0, until) + 1
            first = self.held.rfind(0, 0, last) + 1
            if not last or first == 0 or last - first >= self.group.window:
                return min(end, last * self.group.tokens_per_key), work
            until = first
        return 0, work

    def pin_window(self, end: int) -> bool:
        """Pin the window before `end`; False if a key of it is gone, which is remembered."""
        size = self.ledger.key_size
        last = self._keys_until(end)
        first = max(0, last - self.group.window)
        positions, keys = _unique(self.group.keys[first * size : last * size], size)
        pins = self.ledger.pin_many(keys)
        each = [pins[at : at + SLOT] for at in range(0, len(pins), SLOT)]
        if MISS not in each:
            self.slots = pins
            self.positions = [first + position for position in positions]
            return True
        self.ledger.unpin_many(b"".join(pin for pin in each if pin != MISS))
        self.held[first + positions[each.index(MISS)]] = 0
        return False

    def release(self) -> None:
        if self.slots:
            self.ledger.unpin_many(self.slots)
        self.slots, self.positions = b"", ()

    def runs(self) -> list[tuple[int, int]]:
        """The pinned positions as (first index, count), counted through the whole ask."""
        if isinstance(self.positions, range):
            return [(self.first, len(self.positions))]
        runs: list[tuple[int, int]] = []
        for position in self.positions:
            index = self.first + position
            if runs and sum(runs[-1]) == index:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((index, 1))
        return runs

    def _keys_until(self, end: int) -> int:
        return -(-end // self.group.tokens_per_key)


def _unique(keys: bytes, size: int) -> tuple[list[int], bytes]:
    """The positions at which a key is listed for the first time, and those keys."""
    seen: dict[bytes, int] = {}
    for at in range(0, len(keys), size):
        seen.setdefault(keys[at : at + size], at // size)
    return list(seen.values()), b"".join(seen)
