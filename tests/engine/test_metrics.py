"""What reaches users' metrics, whatever helpers say."""

import math

import pytest

from mpkv.engine.metrics import GRANT, LONGEST_S, PULL, Meter
from mpkv.memory import Ledger


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
