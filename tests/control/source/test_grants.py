"""What an ask gets, checked against a real ledger and against a slow, obvious answer."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpkv.control.source.grants import MAX_WORK, Granted, _Part, pin_groups
from mpkv.memory import FILLING, Ledger, block_ids
from mpkv.messages import KeyGroup
from tests.control.common import KEY_SIZE, keys, u32

ALL = 10**6


class Tier:
    """A ledger as its engine has it, and as a control plane attaches to it."""

    def __init__(self, blocks: int = 256) -> None:
        self.engine = Ledger.create(blocks, KEY_SIZE)
        self.control = Ledger.attach(self.engine.fd)

    def store(self, stored: list[bytes]) -> None:
        allocated = self.engine.allocate(len(stored), FILLING)
        assert allocated is not None
        assert not any(self.engine.publish(allocated[0], b"".join(stored), False))

    def pins(self) -> int:
        return self.engine.counts()["control_pins"]

    def close(self) -> None:
        self.control.close()
        self.engine.close()


@pytest.fixture
def tier() -> Iterator[Tier]:
    made = Tier()
    yield made
    made.close()


def full(listed: list[bytes], tokens: int = 16) -> KeyGroup:
    return KeyGroup(b"".join(listed), tokens, 0)


def windowed(listed: list[bytes], window: int, tokens: int = 16) -> KeyGroup:
    return KeyGroup(b"".join(listed), tokens, window)


def indexes(granted: Granted) -> list[int]:
    return [index for first, count in granted.runs for index in range(first, first + count)]


def grant(tier: Tier, *groups: KeyGroup, limit: int = ALL) -> list[int]:
    """Grant, check that each index got the block of its key, unpin, return the indexes."""
    granted = pin_groups(tier.control, groups, limit)
    found = indexes(granted)
    listed = b"".join(group.keys for group in groups)
    wanted = [listed[index * KEY_SIZE : (index + 1) * KEY_SIZE] for index in found]
    assert u32(block_ids(granted.slots)) == [tier.engine.find(key) for key in wanted]
    assert tier.pins() == len(found)
    assert tier.control.unpin_many(granted.slots) == len(found)
    assert tier.pins() == 0
    return found


def test_full_attention_gets_the_longest_prefix(tier: Tier) -> None:
    wanted = keys("a", 10)
    tier.store(wanted[:6] + wanted[7:])
    assert grant(tier, full(wanted)) == [0, 1, 2, 3, 4, 5]
    assert grant(tier, full(wanted), limit=4) == [0, 1, 2, 3]
    assert grant(tier, full(wanted[7:])) == [0, 1, 2]
    assert grant(tier, full(wanted[6:])) == []


def test_full_groups_end_at_one_token(tier: Tier) -> None:
    fine, coarse = keys("f", 8, 0), keys("c", 4, 1)
    tier.store(fine[:7] + coarse[:2])
    # 7 keys of 16 tokens and 2 of 32: both groups end at token 64.
    assert grant(tier, full(fine, 16), full(coarse, 32)) == [0, 1, 2, 3, 8, 9]


def test_a_windowed_group_gets_the_window_before_the_end(tier: Tier) -> None:
    attention, sliding = keys("f", 8, 0), keys("w", 8, 1)
    tier.store(attention[:6] + sliding[4:6])
    assert grant(tier, full(attention), windowed(sliding, 2)) == [0, 1, 2, 3, 4, 5, 12, 13]


def test_the_end_walks_down_to_where_every_window_is_held(tier: Tier) -> None:
    attention, near, far = keys("f", 9, 0), keys("n", 9, 1), keys("w", 9, 2)
    tier.store(attention + near[:3] + near[5:9] + far[:6])
    # `near` could end at 9, but `far` only at 6; there `near` lacks key 4.
    assert grant(tier, full(attention), windowed(near, 2), windowed(far, 3)) == [
        *range(3),
        9 + 1,
        9 + 2,
        18 + 0,
        18 + 1,
        18 + 2,
    ]


def test_windows_alone(tier: Tier) -> None:
    sliding = keys("w", 9, 0)
    tier.store(sliding[2:7])
    assert grant(tier, windowed(sliding, 3)) == [4, 5, 6]
    assert grant(tier, windowed(sliding, 6)) == []
    # Before the first key of the ask a window needs nothing.
    assert grant(tier, windowed(sliding[2:], 6)) == [0, 1, 2, 3, 4]


def test_a_group_without_keys_is_satisfied(tier: Tier) -> None:
    wanted = keys("a", 3)
    tier.store(wanted)
    assert grant(tier, full([]), full(wanted)) == [0, 1, 2]
    assert grant(tier, full([])) == []


def test_one_key_seventy_thousand_times(tier: Tier) -> None:
    (key,) = keys("a", 1)
    tier.store([key])
    assert grant(tier, full([key] * 70_000)) == [0]
    assert grant(tier, windowed([key] * 70_000, 70_000)) == [0]
    assert grant(tier, full([key] * 3)) == [0]
    following = keys("b", 2)
    tier.store(following)
    assert grant(tier, full([key] * 70_000 + following)) == [0, 70_000, 70_001]


def test_who_lists_a_key_thousands_of_times_pins_it_once(tier: Tier) -> None:
    shared, other = keys("a", 2)
    tier.store([shared, other])
    before = tier.pins()
    wanted = [other, *[shared] * 4000]
    granted = pin_groups(tier.control, (full(wanted),), ALL)
    assert indexes(granted) == [0, 1]
    assert tier.pins() == before + 2


def test_a_saturated_pin_is_a_miss(tier: Tier) -> None:
    wanted = keys("a", 3)
    tier.store(wanted)
    pins: list[bytes] = []
    while (pin := tier.control.pin_prefix(wanted[1])) and len(pins) < 1 << 20:
        pins.append(pin)
    before = tier.pins()
    granted = pin_groups(tier.control, (full(wanted),), ALL)
    assert indexes(granted) == [0]
    assert tier.pins() == before + 1
    assert indexes(pin_groups(tier.control, (windowed(wanted[1:], 2),), ALL)) == []
    assert tier.pins() == before + 1
    assert tier.control.unpin_many(granted.slots + b"".join(pins)) == before + 1


def test_an_ask_that_costs_too_much_gets_nothing(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    walk_down = _Part.walk_down

    def counted(part: _Part, end: int, work: int) -> tuple[int, int]:
        nonlocal looks
        looks += 1
        return walk_down(part, end, work)

    monkeypatch.setattr(_Part, "walk_down", counted)
    held, missing = keys("h", 1)[0], keys("n", 1)[0]
    tier.store([held])
    # Two groups that never agree on any of many ends, and many bystanders.
    contrary = [windowed(pair * 5_000, 1, 1) for pair in ([held, missing], [missing, held])]
    others = [windowed([held], 1, 1 << 20)] * 62
    assert pin_groups(tier.control, (*others, *contrary), ALL).slots == b""
    assert MAX_WORK <= looks < 2 * MAX_WORK
    assert tier.pins() == 0


class VanishingTier:
    """A ledger whose keys `gone` are evicted between looking and pinning."""

    def __init__(self, tier: Tier, gone: list[bytes]) -> None:
        self._control = tier.control
        self._gone = gone
        self.key_size = KEY_SIZE
        self.contains_many = tier.control.contains_many
        self.pin_prefix = tier.control.pin_prefix
        self.unpin_many = tier.control.unpin_many

    def pin_many(self, packed: bytes) -> bytes:
        pins = bytearray(self._control.pin_many(packed))
        for at in range(0, len(packed), KEY_SIZE):
            slot = slice(at // KEY_SIZE * 8, at // KEY_SIZE * 8 + 8)
            if packed[at : at + KEY_SIZE] in self._gone and pins[slot] != b"\xff" * 8:
                self._control.unpin_many(bytes(pins[slot]))
                pins[slot] = b"\xff" * 8
        return bytes(pins)


def test_a_window_that_vanishes_ends_earlier(tier: Tier) -> None:
    sliding = keys("w", 9, 0)
    tier.store(sliding)
    granted = pin_groups(VanishingTier(tier, [sliding[7]]), (windowed(sliding, 3),), ALL)
    assert indexes(granted) == [4, 5, 6]
    assert tier.pins() == 3
    everything = VanishingTier(tier, sliding)
    assert pin_groups(everything, (windowed(sliding, 3),), ALL).slots == b""
    assert tier.pins() == 3


def expected(groups: list[tuple[int, int, list[bool]]], limit: int) -> list[int]:
    """The definition, tried at every token: (tokens per key, window, held) per group."""
    longest = min(tokens * len(held) for tokens, _, held in groups)
    for end in range(longest, 0, -1):
        found = []
        first = 0
        for tokens, window, held in groups:
            last = -(-end // tokens)
            needed = range(max(0, last - window) if window else 0, last)
            if not all(held[index] for index in needed):
                break
            found += [first + index for index in needed]
            first += len(held)
        else:
            if len(found) <= limit:
                return found
    return []


a_group = st.tuples(
    st.sampled_from([2, 4, 6]),
    st.integers(0, 4),
    st.lists(st.sampled_from([True, True, True, False]), min_size=1, max_size=12),
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(a_group, min_size=1, max_size=3), st.integers(1, 30))
def test_grants_are_what_the_definition_says(
    groups: list[tuple[int, int, list[bool]]], limit: int
) -> None:
    tier = Tier(blocks=64)
    try:
        asked = []
        for number, (tokens, window, held) in enumerate(groups):
            listed = keys("k", len(held), number)
            stored = [key for key, is_held in zip(listed, held, strict=True) if is_held]
            if stored:
                tier.store(stored)
            asked.append(KeyGroup(b"".join(listed), tokens, window))
        assert grant(tier, *asked, limit=limit) == expected(groups, limit)
    finally:
        tier.close()
