"""What many measurements of one thing amount to."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """`n` samples; `quartiles` hold the middle half of them. With fewer than 100, `p99` is
    the largest."""

    n: int
    p50: float
    p99: float
    quartiles: tuple[float, float]
    lowest: float
    highest: float

    def __truediv__(self, other: "Summary") -> float:
        """How many times the other's median this median is."""
        return self.p50 / other.p50


def summarize(samples: Sequence[float]) -> Summary:
    """Raises ValueError when there are none."""
    if not samples:
        raise ValueError("nothing was measured")
    ordered = sorted(samples)
    return Summary(
        n=len(ordered),
        p50=statistics.median(ordered),
        p99=_nearest_rank(ordered, 0.99),
        quartiles=(_nearest_rank(ordered, 0.25), _nearest_rank(ordered, 0.75)),
        lowest=ordered[0],
        highest=ordered[-1],
    )


def line_slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """How much y grows per unit of x, by least squares."""
    return statistics.linear_regression(xs, ys).slope


def growth_exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The k of y ~ x**k, by least squares on logarithms: 0 is flat, 1 is proportional."""
    return line_slope([math.log(x) for x in xs], [math.log(y) for y in ys])


def _nearest_rank(ordered: Sequence[float], share: float) -> float:
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]
