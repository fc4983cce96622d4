"""How much of a request one pull may ask for."""

import math

from mpkv.messages import KeyGroup


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
