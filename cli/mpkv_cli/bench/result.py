"""What a benchmark found, in the forms in which it is shown, stored and drawn."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from mpkv_cli.bench.summary import Summary


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Series:
    """Points of one thing; `low` and `high` are its spread at each, or empty."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Chart:
    """Lines over x, or groups of bars at `ticks` (their x are 0, 1, ...)."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    ticks: tuple[str, ...] = ()
    log: Literal["", "x", "y", "xy"] = ""


@dataclass(frozen=True)
class Result:
    """`figures` are seconds, bytes, bytes per second, shares and ratios, by stable names."""

    benchmark: str
    transport: str
    parameters: dict[str, Any]
    figures: dict[str, float]
    tables: tuple[Table, ...]
    chart: Chart
    notes: tuple[str, ...] = ()

    def as_json(self, machine: dict[str, Any]) -> dict[str, Any]:
        return {
            "benchmark": self.benchmark,
            "machine": {**machine, "transport": self.transport},
            "parameters": self.parameters,
            "figures": self.figures,
            "tables": [asdict(table) for table in self.tables],
            "notes": list(self.notes),
        }


SUMMARY_COLUMNS = ("n", "p50", "p99", "middle half", "range")


def summary_cells(summary: Summary, per_unit: float, digits: int = 3) -> tuple[str, ...]:
    """The cells under SUMMARY_COLUMNS, in units of `per_unit` (0.001: milliseconds)."""

    def number(value: float) -> str:
        return f"{value / per_unit:,.{digits}f}"

    low, high = summary.quartiles
    return (
        f"{summary.n:,}",
        number(summary.p50),
        number(summary.p99),
        f"{number(low)}-{number(high)}",
        f"{number(summary.lowest)}-{number(summary.highest)}",
    )


def series(label: str, points: dict[float, Summary], per_unit: float) -> Series:
    """Medians with their middle half."""
    return Series(
        label,
        tuple(points),
        tuple(summary.p50 / per_unit for summary in points.values()),
        tuple(summary.quartiles[0] / per_unit for summary in points.values()),
        tuple(summary.quartiles[1] / per_unit for summary in points.values()),
    )
