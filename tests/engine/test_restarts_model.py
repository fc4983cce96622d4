"""Restarts of helpers over all interleavings, whole and with each rule left out."""

import pytest

from tests.engine.restarts import explore


@pytest.mark.parametrize(("part", "states"), [("slot", 50_000), ("pin", 10_000)])
def test_restarts_hold_in_every_interleaving(part: str, states: int) -> None:
    assert explore(part) > states


@pytest.mark.parametrize(
    ("part", "flaw", "broken"),
    [
        ("pin", "zero pins before the reap", "a pin counts while its .*, pin, kill$"),
        ("slot", "tell before the reap", "a slot is lent while .*, retire, .*, post a READ$"),
        ("slot", "tell before the unlinking", "rings of a retired .*, retire, .*, send a pull$"),
        ("slot", "announce before the reap", "one of each .* crashes, .*, spawn initiator$"),
        ("slot", "return at the kill", "a slot is lent while .*, end the .*, take returned$"),
        ("slot", "return nothing", "nothing is held for the dead; .*, adopt an initiator$"),
        ("slot", "reuse rings", "a slot is lent while .*, begin anew, .*, post a READ$"),
        ("slot", "keep the pulls of the dead", "nothing is held in the end; .*, retire$"),
        ("slot", "ignore the target", "all helpers run; after .*, target is gone, "),
    ],
)
def test_each_rule_of_restarts_is_needed(part: str, flaw: str, broken: str) -> None:
    with pytest.raises(AssertionError, match=broken):
        explore(part, frozenset({flaw}))
