"""What mpkv costs the engine's scheduler thread.

A loop shaped like a scheduler's (pure Python, then a wait for the model) runs alone and,
in turns with that, while peers look up in its tier and requests wait on pulls from a peer
that does not answer. Then the calls of single pulls are timed, and those of empty steps.
"""

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from mpkv_cli.bench.progress import Progress
from mpkv_cli.bench.raw import read_transport
from mpkv_cli.bench.result import SUMMARY_COLUMNS, Chart, Result, Series, Table, summary_cells
from mpkv_cli.bench.summary import Summary, summarize
from mpkv_cli.bench.worker import Worker
from mpkv_cli.bench.workers.asker import MOST_OPEN

BLOCK_BYTES = 4096
LABEL = "scheduler"
KEYS_PER_LOOKUP = 256
KEYS_PER_WAITING = 16
IDLE_STEPS = 1000
IDLE_REPEATS = 30
STEPS_S = 300.0
ALONE, LOADED = "alone", "loaded"


@dataclass
class _Steps:
    """Seconds of the steps of all turns, of mpkv's calls in them, and each turn's p99."""

    whole: list[float] = field(default_factory=list)
    mpkv: list[float] = field(default_factory=list)
    p99_by_turn: list[float] = field(default_factory=list)

    def add(self, found: list[tuple[float, float]]) -> None:
        self.whole += [whole for whole, _ in found]
        self.mpkv += [mpkv for _, mpkv in found]
        self.p99_by_turn.append(summarize([whole for whole, _ in found]).p99)


@dataclass(frozen=True)
class Plan:
    """`turns` times `steps` steps alone and as many loaded; a step computes for `work_s` and
    waits for `wait_s`. Loaded: `lookups` per second, and `waiting` requests. Then `pulls`
    pulls of `pull_keys` keys each."""

    turns: int
    steps: int
    work_s: float
    wait_s: float
    lookups: float
    waiting: int
    pulls: int
    pull_keys: int


def measure(plan: Plan, progress: Progress) -> Result:
    steps = {ALONE: _Steps(), LOADED: _Steps()}
    rates: list[float] = []
    with ExitStack() as stack:
        progress.say("starting two engines")
        source, asker, silent = (
            stack.enter_context(Worker(name)) for name in ("engine", "asker", "silent")
        )
        engine = stack.enter_context(Worker("scheduler"))
        most = max(plan.pull_keys, plan.waiting * KEYS_PER_WAITING, MOST_OPEN * KEYS_PER_LOOKUP)
        # A quarter may be pinned for one peer, and a quarter filled by pulls.
        tier = {"blocks": 4 * most + KEYS_PER_LOOKUP, "block_bytes": BLOCK_BYTES}
        peer = source.call("open", node="source", **tier)
        source.call("store", label=LABEL, count=plan.pull_keys)
        address = engine.call("open", node="engine", peers=[peer], **tier)
        engine.call("wait_peers", count=1)
        (mute,) = silent.call("open_peers", like=peer, block_bytes=BLOCK_BYTES, count=1)
        items = engine.call("calibrate", work_s=plan.work_s)
        loop = {"count": plan.steps, "items": items, "wait_s": plan.wait_s}

        def run(with_mpkv: bool) -> Any:
            return engine.call("steps", with_mpkv=with_mpkv, limit_s=STEPS_S, **loop)

        engine.call("steps", with_mpkv=True, **{**loop, "count": 20})
        for turn in range(plan.turns):
            progress.say(f"steps, turn {turn + 1} of {plan.turns}")
            steps[ALONE].add(run(False))
            engine.call("store", label=f"{LABEL} {turn}", count=KEYS_PER_LOOKUP)
            engine.call("wait_on", peer=mute, pulls=plan.waiting, keys=KEYS_PER_WAITING)
            asker.call(
                "start",
                address=address,
                block_bytes=BLOCK_BYTES,
                label=f"{LABEL} {turn}",
                count=KEYS_PER_LOOKUP,
                per_second=plan.lookups,
            )
            steps[LOADED].add(run(True))
            rates.append(asker.call("stop"))
            engine.call("give_up")
        progress.say("single pulls")
        wanted = {"peer": peer, "label": LABEL, "count": plan.pull_keys}
        engine.call("pull_costs", repeats=3, **wanted)
        costs = engine.call("pull_costs", repeats=plan.pulls, **wanted)
        idle = engine.call("idle_step_s", steps=IDLE_STEPS, repeats=IDLE_REPEATS)
    return _result(plan, steps, summarize(rates), costs, summarize(idle))


def _result(
    plan: Plan,
    steps: dict[str, _Steps],
    rates: Summary,
    costs: list[dict[str, float]],
    idle: Summary,
) -> Result:
    alone, loaded = summarize(steps[ALONE].whole), summarize(steps[LOADED].whole)
    mpkv = summarize(steps[LOADED].mpkv)
    pull = summarize([sum(each.values()) for each in costs])
    p99s = {kind: summarize(found.p99_by_turn) for kind, found in steps.items()}
    rows = [
        ("step alone", *summary_cells(alone, 1e-3)),
        ("step loaded", *summary_cells(loaded, 1e-3)),
        ("p99 of a turn's steps, alone", *summary_cells(p99s[ALONE], 1e-3)),
        ("p99 of a turn's steps, loaded", *summary_cells(p99s[LOADED], 1e-3)),
        (f"of a loaded step in mpkv, {plan.waiting} wait", *summary_cells(mpkv, 1e-3)),
        ("mpkv in a step with nothing to do", *summary_cells(idle, 1e-3, 5)),
        (f"all calls for a pull of {plan.pull_keys:,} keys", *summary_cells(pull, 1e-3)),
    ]
    for name, what in (
        ("keys_s", "packing its keys, looking them up here"),
        ("start_s", "starting it"),
        ("adopt_s", "adopting it"),
        ("end_s", "ending its request"),
    ):
        cells = summary_cells(summarize([each[name] for each in costs]), 1e-3)
        rows.append((f"  of these: {what}", *cells))
    return Result(
        benchmark="scheduler",
        transport=read_transport(),
        parameters={
            "turns": plan.turns,
            "steps": plan.steps,
            "work_s": plan.work_s,
            "wait_s": plan.wait_s,
            "lookups_per_s": plan.lookups,
            "keys_per_lookup": KEYS_PER_LOOKUP,
            "waiting": plan.waiting,
            "pulls": plan.pulls,
            "pull_keys": plan.pull_keys,
        },
        figures={
            "step_alone_p50_s": alone.p50,
            "step_alone_p99_s": alone.p99,
            "step_loaded_p50_s": loaded.p50,
            "step_loaded_p99_s": loaded.p99,
            "loaded_to_alone_p99": loaded.p99 / alone.p99,
            "lookups_per_s": rates.p50,
            "mpkv_per_loaded_step_p50_s": mpkv.p50,
            "mpkv_per_loaded_step_p99_s": mpkv.p99,
            "per_pull_s": pull.p50,
            "per_pull_p99_s": pull.p99,
            "per_idle_step_s": idle.p50,
        },
        tables=(Table("Milliseconds", ("", *SUMMARY_COLUMNS), tuple(rows)),),
        chart=_chart(steps),
        notes=(
            f"Loaded: {rates.p50:,.0f} lookups/s of {KEYS_PER_LOOKUP} keys were answered for "
            f"peers ({plan.lookups:,.0f} asked for) and {plan.waiting} requests waited on pulls. "
            "With few cores the control plane's work for them is part of what the steps compete "
            "with; the peers' own runs at the lowest priority.",
        ),
    )


def _chart(steps: dict[str, _Steps]) -> Chart:
    """Which share of the steps took no longer than so much."""
    lines = []
    for label, found in steps.items():
        ordered = sorted(found.whole)
        shares = [(at + 1) / len(ordered) for at in range(len(ordered))]
        lines.append(Series(f"step {label}", tuple(1e3 * each for each in ordered), tuple(shares)))
    return Chart(
        "Scheduler steps, alone and under load", "milliseconds", "share of steps", tuple(lines)
    )
