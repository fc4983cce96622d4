"""The pin, publish and evict protocol over all interleavings, whole and with flaws."""

import pytest

from tests.memory.interleavings import explore


def test_the_protocol_holds_in_every_interleaving() -> None:
    assert explore() > 50_000


@pytest.mark.parametrize(
    ("flaw", "broken"),
    [
        ("believe the hint", "a pinned block's bytes are those of its key; after .*, pin$"),
        ("evict pinned", "a block in nobody's use has no pins; after .*, pin, evict, reuse$"),
        ("reclaim pinned", "a block in nobody's use has no pins; after .*, free, reclaim$"),
        ("pin without swap", "a block in nobody's use has no pins; after .*, evict, pin, reuse$"),
        ("key while ready", "a ready block's key is what was published; after .*, write key$"),
        ("look once", "a hit was published; after .*, find: check$"),
        ("zero pins of the living", "the count is the pins that are held; after .*, pin, zero"),
    ],
)
def test_each_rule_of_the_protocol_is_needed(flaw: str, broken: str) -> None:
    with pytest.raises(AssertionError, match=broken):
        explore(frozenset({flaw}))
