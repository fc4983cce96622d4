"""How much of a request one pull may ask for, and which of its keys an answer means."""

import array
import math
from sys import byteorder

from mpkv.messages import KeyGroup

INDEX_BYTES = 4


def slots_of(group: KeyGroup, key_size: int) -> int:
    """The slots that the longest hit of `group` fills."""
    keys = len(group.keys) // key_size
    return min(keys, group.window) if group.window else keys


def fit(groups: tuple[KeyGroup, ...], slots: int, key_size: int) -> tuple[KeyGroup, ...]:
    """Cut the groups to as many leading tokens as fill at most `slots`: a prefix serves.

    Nothing is left of them if not even one key of each fits.
    """
    if sum(slots_of(group, key_size) for group in groups) <= slots:
        return groups
    room = slots - sum(slots_of(group, key_size) for group in groups if group.window)
    step = math.lcm(*(group.tokens_per_key for group in groups))
    per_step = sum(step // group.tokens_per_key for group in groups if not group.window)
    tokens = max(room // per_step, 0) * step if per_step else 0
    return tuple(
        KeyGroup(
            group.keys[: tokens // group.tokens_per_key * key_size],
            group.tokens_per_key,
            group.window,
        )
        for group in groups
    )


class KeyPicker:
    """Picks keys of `key_size` bytes by their packed indexes."""

    def __init__(self, key_size: int) -> None:
        self._key_size = key_size
        self._identity = b""

    def pick(self, keys: bytes, packed: bytes, seen: bytearray) -> bytes | None:
        """The keys at the indexes, which `seen` has then, a byte for each key; None, and
        nothing is changed, if one is out of range or has been seen before."""
        size = self._key_size
        if len(packed) % INDEX_BYTES:
            return None
        if not packed:
            return b""
        count, first = len(packed) // INDEX_BYTES, int.from_bytes(packed[:INDEX_BYTES], byteorder)
        end = first + count
        # Nearly always a run, which is told without a look at each index.
        if end <= len(seen) and packed == self._run(first, end):
            if seen.find(1, first, end) >= 0:
                return None
            seen[first:end] = bytes([1]) * count
            return keys[first * size : end * size]
        indexes = array.array("I", packed)
        if max(indexes) >= len(seen) or len(set(indexes)) < count:
            return None
        if any(seen[i] for i in indexes):
            return None
        for i in indexes:
            seen[i] = 1
        return b"".join(keys[i * size : (i + 1) * size] for i in indexes)

    def _run(self, first: int, end: int) -> bytes:
        """The packed indexes `first` to `end - 1`."""
        if len(self._identity) < end * INDEX_BYTES:
            self._identity = array.array("I", range(2 * end)).tobytes()
        return self._identity[first * INDEX_BYTES : end * INDEX_BYTES]
