"""The result of `mpkv bench e2e`: figures, tables and chart from its samples."""

from collections.abc import Callable, Sequence
from typing import Any

from mpkv_cli.bench.against import VLLM_P2P
from mpkv_cli.bench.e2e_engines import DESTINATION_STEP_TOKENS, MPKV, SOURCE_STEP_TOKENS
from mpkv_cli.bench.e2e_samples import BUSY, IDLE, LOCAL_HIT, SATURATED, Sample, of
from mpkv_cli.bench.result import Chart, Result, Table, series
from mpkv_cli.bench.summary import Summary, summarize

SYSTEMS = (MPKV, VLLM_P2P)
STATES = (IDLE, BUSY, SATURATED, LOCAL_HIT)
SHORT = {MPKV: "mpkv", VLLM_P2P: "vllm"}
LABEL = {MPKV: "mpkv", VLLM_P2P: "vLLM's P2P tier"}
COLUMNS = ("", "n", "median", "range")

Value = Callable[[Sample], float]


def make_result(
    samples: Sequence[Sample],
    computed_s: dict[str, list[float]],
    parameters: dict[str, Any],
) -> Result:
    """`computed_s`: TTFT of what the destination computed itself, by system."""
    figures = make_figures(samples)
    for system, seconds in computed_s.items():
        figures[f"{SHORT[system]}_computed_ttft_s"] = summarize(seconds).p50
    return Result(
        benchmark="e2e",
        transport="ZeroMQ over TCP on loopback; UCX between processes of one host",
        parameters=parameters,
        figures=figures,
        tables=tuple(
            table
            for table in (
                _table("Lookup delay on the destination, ms", samples, _lookup_delay, 1e-3),
                _table("Time to first token, ms", samples, lambda s: s.ttft_s, 1e-3, computed_s),
                _parts(samples),
                _checks(samples),
            )
            if table.rows
        ),
        chart=_chart(samples),
        notes=_notes(samples),
    )


def make_figures(samples: Sequence[Sample]) -> dict[str, float]:
    """Medians in seconds by the names that are fixed for good, and their ratios."""
    figures: dict[str, float] = {}
    for system in SYSTEMS:
        short = SHORT[system]
        for state, name in ((IDLE, "idle"), (BUSY, "busy"), (SATURATED, "saturated")):
            found = of(samples, system, state)
            if found:
                figures[f"{short}_{name}_s"] = _median(found, _lookup_delay)
                if state != SATURATED:
                    figures[f"{short}_{name}_ttft_s"] = _median(found, lambda s: s.ttft_s)
        # mpkv's own saturated figures carry no prefix.
        prefix = "" if system == MPKV else f"{short}_"
        figures |= _saturated(samples, system, prefix)
    for name in ("idle", "busy"):
        ours, theirs = figures.get(f"mpkv_{name}_s"), figures.get(f"vllm_{name}_s")
        if ours and theirs:
            figures[f"vllm_to_mpkv_{name}"] = theirs / ours
    return figures


def _saturated(samples: Sequence[Sample], system: str, prefix: str) -> dict[str, float]:
    pulled, local = of(samples, system, SATURATED), of(samples, system, LOCAL_HIT)
    if not (pulled and local):
        return {}
    ttft_s, local_s = (_median(found, lambda s: s.ttft_s) for found in (pulled, local))
    return {
        f"{prefix}saturated_ttft_s": ttft_s,
        f"{prefix}saturated_local_hit_ttft_s": local_s,
        f"{prefix}saturated_to_local_hit": ttft_s / local_s,
    }


def _table(
    title: str,
    samples: Sequence[Sample],
    value: Value,
    per_unit: float,
    computed_s: dict[str, list[float]] | None = None,
) -> Table:
    rows = []
    for state in STATES:
        for system in SYSTEMS:
            found = [value(sample) for sample in of(samples, system, state)]
            # A local hit has no lookup to wait for.
            if any(found):
                rows.append(_row(f"{LABEL[system]}: {state}", found, per_unit))
    for system, seconds in (computed_s or {}).items():
        rows.append(_row(f"{LABEL[system]}: idle, computed there", seconds, per_unit))
    return Table(title, COLUMNS, tuple(rows))


def _parts(samples: Sequence[Sample]) -> Table:
    """Where a lookup delay of mpkv's goes."""
    parts: tuple[tuple[str, Value], ...] = (
        ("until the grant", lambda s: s.granted_s),
        ("READ and confirmation", lambda s: s.confirmed_s - s.granted_s),
        ("until the scheduler saw it", lambda s: s.lookup_delay_s - s.confirmed_s),
    )
    rows = [
        _row(f"{state}: {name}", [value(sample) for sample in found], 1e-3)
        for state in STATES[:3]
        if (found := of(samples, MPKV, state))
        for name, value in parts
    ]
    return Table("Parts of mpkv's lookup delay, ms", COLUMNS, tuple(rows))


def _checks(samples: Sequence[Sample]) -> Table:
    rows = []
    for state in STATES:
        for system in SYSTEMS:
            found = of(samples, system, state)
            if found:
                steps = summarize([sample.step_s for sample in found])
                rows.append(
                    (
                        f"{LABEL[system]}: {state}",
                        f"{sum(sample.whole for sample in found)} of {len(found)}",
                        f"{sum(sample.identical for sample in found)} of {len(found)}",
                        f"{steps.p50 * 1000:,.0f} ms" if steps.p50 else "-",
                    )
                )
    columns = ("", "whole prompt reused", "tokens as computed", "step of the busy engine")
    return Table("What was reused, and whether the answer is the same", columns, tuple(rows))


def _chart(samples: Sequence[Sample]) -> Chart:
    def bars(system: str) -> dict[float, Summary]:
        return {
            float(at): summarize([_lookup_delay(sample) for sample in found])
            for at, state in enumerate(STATES[:3])
            if (found := of(samples, system, state))
        }

    return Chart(
        "Lookup delay of a 32 MiB prefix: from arrival until the blocks are there",
        "which engine is busy",
        "milliseconds (median, middle half)",
        tuple(series(LABEL[system], found, 1e-3) for system in SYSTEMS if (found := bars(system))),
        ticks=("none", "the source", "the destination"),
        log="y",
    )


def _notes(samples: Sequence[Sample]) -> tuple[str, ...]:
    notes = [
        "All engines sleep in vLLM's message queues instead of yielding; the progress thread "
        "of vLLM's NIXL agents sleeps for 1 ms at a time, as without that two such engines "
        "starve each other on two cores. The two systems ran one after the other.",
        f"A step of the source takes {SOURCE_STEP_TOKENS:,} tokens, one of the destination "
        f"{DESTINATION_STEP_TOKENS:,}. mpkv's lookup delay begins when the request arrives in "
        "the engine, vLLM's when its scheduler first looks at it.",
    ]
    broken = [sample for sample in samples if not sample.whole]
    if broken:
        notes.append(
            f"{len(broken)} of {len(samples)} requests did not reuse the whole prompt or "
            "answered other tokens; they are in the medians."
        )
    return tuple(notes)


def _row(name: str, values: Sequence[float], per_unit: float) -> tuple[str, ...]:
    summary = summarize(values)
    middle, low, high = (
        f"{value / per_unit:,.1f}" for value in (summary.p50, summary.lowest, summary.highest)
    )
    return (name, str(summary.n), middle, f"{low}-{high}")


def _lookup_delay(sample: Sample) -> float:
    return sample.lookup_delay_s


def _median(samples: Sequence[Sample], value: Value) -> float:
    return summarize([value(sample) for sample in samples]).p50
