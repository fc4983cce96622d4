"""What reaches users' metrics, whatever helpers say."""

import math

import pytest

from mpkv.engine.metrics import GRANT, LONGEST_S, MISSED_BLOCKS, PULL, Meter, definitions
from mpkv.memory import Ledger
from mpkv.messages import MissReason


@pytest.mark.parametrize(
    ("told", "counted"),
    [(0.25, 0.25), (math.nan, 0.0), (-1.0, 0.0), (math.inf, LONGEST_S), (-math.inf, 0.0)],
)
def test_delays_stay_numbers(told: float, counted: float) -> None:
    ledger = Ledger.create(8, 36)
    meter = Meter(ledger, 4096)
    meter.pulled("peer:1", 1, told, told)
    stats = meter.take(0)
    assert stats is not None
    assert [stats.data["data"][name] for name in (GRANT, PULL)] == [{(): [counted]}] * 2
    ledger.close()


def test_what_was_asked_for_and_not_given_is_counted_by_peer_and_reason() -> None:
    ledger = Ledger.create(8, 36)
    meter = Meter(ledger, 4096)
    meter.not_given("peer:1", MissReason.NOT_HELD, 3, "")
    meter.not_given("peer:1", MissReason.NOT_HELD, 4, "")
    meter.not_given("peer:2", MissReason.NO_SPACE, 5, "")
    stats = meter.take(0)
    assert stats is not None
    assert stats.data["data"][MISSED_BLOCKS] == {
        ("peer:1", "not_held"): 7,
        ("peer:2", "no_space"): 5,
    }
    assert definitions()[MISSED_BLOCKS].labelnames == ("peer", "reason")
    ledger.close()
