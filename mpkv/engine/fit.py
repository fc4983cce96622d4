"""How much of a request one pull may ask for, and which of its keys an answer means."""

import array
import math

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

    def pick(self, keys: bytes, packed: bytes) -> bytes | None:
        """The keys at the indexes; None if one is out of range."""
        if len(packed) % INDEX_BYTES:
            return None
        size = self._key_size
        count, total = len(packed) // INDEX_BYTES, len(keys) // size
        # Nearly always a prefix, which is told without a look at each index.
        if count <= total and packed == self._leading(count):
            return keys[: count * size]
        indexes = array.array("I", packed)
        if count > total or max(indexes) >= total:
            return None
        return b"".join(keys[i * size : (i + 1) * size] for i in indexes)

    def _leading(self, count: int) -> bytes:
        """The packed indexes 0, 1, ... `count - 1`."""
        if len(self._identity) < count * INDEX_BYTES:
            self._identity = array.array("I", range(2 * count)).tobytes()
        return self._identity[: count * INDEX_BYTES]
