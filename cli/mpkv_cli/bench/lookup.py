"""How long a grant takes, from a source that is idle and from one whose engine is busy.

Idle and busy take turns in one run, and every ask has a bare ZeroMQ exchange of the same
bytes beside it, so that whatever else the machine does falls on all of them alike. A peer
that asks for the same keys in another way can be measured in the same turns: see `Rival`.
"""

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from mpkv_cli.bench.exchange import Exchange
from mpkv_cli.bench.probe import Probe
from mpkv_cli.bench.progress import Progress
from mpkv_cli.bench.result import (
    SUMMARY_COLUMNS,
    Chart,
    Result,
    Series,
    Table,
    series,
    summary_cells,
)
from mpkv_cli.bench.standin import make_keys
from mpkv_cli.bench.summary import Summary, summarize
from mpkv_cli.bench.worker import Worker

BLOCK_BYTES = 4096
RIVAL_ASKS = 5
# A grant to one peer may pin a quarter of a tier.
TIER_PER_KEY = 4
LABEL = "lookup"
# The table of the report names its figures for this many keys.
HEADLINE_KEYS = 2048
# Between asks, so that they fall on every phase of the source's step, and so that processors
# sleep in between as they do when lookups are rare.
PAUSE_S = (0.0005, 0.006)
SETTLE_S = 0.1
WARM_UP = 20

IDLE, BUSY = "idle", "busy"


class Rival(Protocol):
    """Another way to look keys up, measured in the same turns as mpkv's."""

    @property
    def name(self) -> str: ...

    def set_busy(self, step_s: float, held: float) -> None: ...

    def set_idle(self) -> None: ...

    def look_up(self, keys: bytes) -> float:
        """Seconds until all of `keys`, which the other side holds, are known to be hits."""


@dataclass
class _Samples:
    """Seconds, by state of the source and by number of keys."""

    grant: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    confirm: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    bare: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    rival: dict[tuple[str, int], list[float]] = field(default_factory=dict)


def measure(
    *,
    keys: Sequence[int],
    turns: int,
    asks: int,
    step_s: float,
    held: float,
    progress: Progress,
    rival: Rival | None = None,
) -> Result:
    """`turns` times the source is idle and then busy; each time come `asks` asks of each
    number of keys, and then `RIVAL_ASKS` of the rival while mpkv's own source is idle."""
    samples = _Samples()
    with ExitStack() as stack:
        progress.say("starting the source")
        source = stack.enter_context(Worker("engine"))
        blocks = max(keys) * TIER_PER_KEY
        address = source.call("open", node="source", blocks=blocks, block_bytes=BLOCK_BYTES)
        source.call("store", label=LABEL, count=max(keys))
        probe = stack.enter_context(Probe(address, BLOCK_BYTES))
        exchange = stack.enter_context(Exchange(stack.enter_context(Worker("echo"))))
        wanted = {count: make_keys(LABEL, 0, count) for count in keys}
        for count in keys:
            _ask(probe, exchange, wanted[count], WARM_UP, _Samples(), (IDLE, count))
        for turn in range(turns):
            for state in (IDLE, BUSY):
                if state == BUSY:
                    source.call("busy", step_s=step_s, held=held)
                time.sleep(SETTLE_S)
                for count in keys:
                    progress.step(turn, turns, f"asking a source that is {state}")
                    _ask(probe, exchange, wanted[count], asks, samples, (state, count))
                source.call("idle")
                if rival is not None:
                    progress.say(f"asking {rival.name}, whose source is {state}")
                    _ask_rival(rival, state, step_s, held, wanted, samples)
    return _result(samples, keys, turns, asks, step_s, held, rival.name if rival else "")


def _ask_rival(
    rival: Rival,
    state: str,
    step_s: float,
    held: float,
    wanted: dict[int, bytes],
    samples: _Samples,
) -> None:
    if state == BUSY:
        rival.set_busy(step_s, held)
    time.sleep(SETTLE_S)
    for count, keys in wanted.items():
        for _ in range(RIVAL_ASKS):
            # Anywhere in a step.
            time.sleep(random.uniform(0, step_s))
            samples.rival.setdefault((state, count), []).append(rival.look_up(keys))
    rival.set_idle()


def _ask(
    probe: Probe,
    exchange: Exchange,
    keys: bytes,
    asks: int,
    samples: _Samples,
    where: tuple[str, int],
) -> None:
    body, answer_bytes = probe.exchanged_bytes(keys)
    exchange.answer_with(answer_bytes)
    for _ in range(asks):
        time.sleep(random.uniform(*PAUSE_S))
        granted = probe.ask(keys)
        samples.grant.setdefault(where, []).append(granted.seconds)
        time.sleep(random.uniform(*PAUSE_S))
        samples.confirm.setdefault(where, []).append(probe.confirm(granted.grant))
        time.sleep(random.uniform(*PAUSE_S))
        samples.bare.setdefault(where, []).append(exchange.once(body))


def _result(
    samples: _Samples,
    keys: Sequence[int],
    turns: int,
    asks: int,
    step_s: float,
    held: float,
    rival: str,
) -> Result:
    grant, confirm, bare, against = (
        {where: summarize(found) for where, found in kind.items()}
        for kind in (samples.grant, samples.confirm, samples.bare, samples.rival)
    )
    figures: dict[str, float] = {}
    headline = HEADLINE_KEYS if HEADLINE_KEYS in keys else max(keys)
    for count in [headline, *(count for count in keys if count != headline)]:
        suffix = "" if count == headline else f"_{count}_keys"
        idle, busy, floor = grant[IDLE, count], grant[BUSY, count], bare[IDLE, count]
        figures |= {
            f"grant_idle_p50_s{suffix}": idle.p50,
            f"grant_idle_p99_s{suffix}": idle.p99,
            f"grant_busy_p50_s{suffix}": busy.p50,
            f"grant_busy_p99_s{suffix}": busy.p99,
            f"zmq_p50_s{suffix}": floor.p50,
            f"zmq_p99_s{suffix}": floor.p99,
            f"zmq_busy_p50_s{suffix}": bare[BUSY, count].p50,
            f"zmq_busy_p99_s{suffix}": bare[BUSY, count].p99,
            f"busy_to_idle{suffix}": busy / idle,
            f"busy_to_zmq_p50{suffix}": busy / floor,
            f"busy_to_zmq_p99{suffix}": busy.p99 / floor.p99,
        }
        if rival:
            figures |= {
                f"against_idle_p50_s{suffix}": against[IDLE, count].p50,
                f"against_busy_p50_s{suffix}": against[BUSY, count].p50,
                f"against_to_busy{suffix}": against[BUSY, count] / busy,
            }
    return Result(
        benchmark="lookup",
        transport="ZeroMQ over TCP on loopback, nothing is READ",
        parameters={
            "keys": list(keys),
            "turns": turns,
            "asks": asks,
            "step_s": step_s,
            "held": held,
            "headline_keys": headline,
            "against": rival or "nothing else",
        },
        figures=figures,
        tables=(
            _latencies(
                {"grant": grant, "confirmation": confirm, "bare ZeroMQ": bare, rival: against},
                keys,
            ),
            _ratios(figures, keys, headline),
        ),
        chart=_chart(grant, bare, keys),
        notes=(
            f"A busy source computes for {held:.0%} of each step of {step_s:g} s with the GIL "
            "held, and waits for the rest. A grant is timed from handing the ask to ZeroMQ to "
            "having decoded the answer; the bare exchange moves as many bytes both ways.",
        ),
    )


def _latencies(found: dict[str, dict[tuple[str, int], Summary]], keys: Sequence[int]) -> Table:
    rows = [
        (
            f"{count:,} keys: {what}, source {state}",
            *summary_cells(summaries[state, count], 1e-3),
        )
        for count in keys
        for what, summaries in found.items()
        for state in (IDLE, BUSY)
        if summaries
    ]
    return Table("Milliseconds", ("", *SUMMARY_COLUMNS), tuple(rows))


def _ratios(figures: dict[str, float], keys: Sequence[int], headline: int) -> Table:
    rows = []
    for count in keys:
        suffix = "" if count == headline else f"_{count}_keys"
        names = ("busy_to_idle", "busy_to_zmq_p50", "busy_to_zmq_p99")
        rows.append((f"{count:,} keys", *(f"{figures[name + suffix]:.2f}" for name in names)))
    columns = ("", "busy / idle, p50", "busy / bare ZeroMQ, p50", "busy / bare ZeroMQ, p99")
    return Table("Ratios (bare ZeroMQ with an idle source)", columns, tuple(rows))


def _chart(
    grant: dict[tuple[str, int], Summary],
    bare: dict[tuple[str, int], Summary],
    keys: Sequence[int],
) -> Chart:
    def bars(label: str, found: dict[tuple[str, int], Summary], state: str) -> Series:
        return series(label, {at: found[state, n] for at, n in enumerate(keys)}, 1e-3)

    return Chart(
        "Grant latency: the source's engine does not matter",
        "keys asked for",
        "milliseconds (median, middle half)",
        (
            bars("bare ZeroMQ, same bytes", bare, IDLE),
            bars("grant, source idle", grant, IDLE),
            bars("grant, source busy", grant, BUSY),
        ),
        ticks=tuple(f"{count:,}" for count in keys),
    )
