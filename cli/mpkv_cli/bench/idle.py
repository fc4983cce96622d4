"""What an engine's helpers use while its peers are connected and nothing happens."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from mpkv_cli.bench.progress import Progress
from mpkv_cli.bench.raw import read_transport
from mpkv_cli.bench.resources import cpu_seconds, private_bytes
from mpkv_cli.bench.result import SUMMARY_COLUMNS, Chart, Result, Table, series, summary_cells
from mpkv_cli.bench.summary import Summary, summarize
from mpkv_cli.bench.worker import Worker

BLOCK_BYTES = 64 << 10
BLOCKS = 1024
PULL_BLOCKS = 16
LABEL = "idle"
# After the last pull, until what it has set in motion has come to rest.
SETTLE_S = 1.0
PERIOD_S = 1.0
MB = 1e6


@dataclass
class _Helper:
    """Shares of a core, one per period, and bytes of memory that is its own."""

    shares: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


def measure(*, peers: int, seconds: float, settle_s: float, progress: Progress) -> Result:
    """An engine and `peers` others, each connected to it and it to them; each pulls once."""
    with ExitStack() as stack:
        progress.say(f"starting {1 + peers} engines")
        tier = {"blocks": BLOCKS, "block_bytes": BLOCK_BYTES}
        others = [stack.enter_context(Worker("engine")) for _ in range(peers)]
        addresses = [other.call("open", node="other", **tier) for other in others]
        engine = stack.enter_context(Worker("engine"))
        address = engine.call("open", node="engine", peers=addresses, **tier)
        engine.call("wait_peers", count=peers)
        # A pull empties the tier that it fills, so everybody stores after pulling.
        for number, peer in enumerate(addresses):
            label = f"{LABEL} {number}"
            others[number].call("store", label=label, count=PULL_BLOCKS, write=True)
            engine.call("pull", peer=peer, label=label, count=PULL_BLOCKS, check=True)
        engine.call("store", label=LABEL, count=PULL_BLOCKS, write=True)
        for other in others:
            other.call("pull", peer=address, label=LABEL, count=PULL_BLOCKS, check=True)
        helpers = _watch(engine.call("pids"), seconds, settle_s, progress)
    return _result(helpers, peers, seconds)


def _watch(
    pids: dict[str, int], seconds: float, settle_s: float, progress: Progress
) -> dict[str, _Helper]:
    helpers = {name: _Helper() for name in pids}
    time.sleep(settle_s)
    periods = max(round(seconds / PERIOD_S), 1)
    for period in range(periods):
        progress.step(period, periods, "seconds of doing nothing")
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        started = time.monotonic()
        time.sleep(seconds / periods)
        elapsed = time.monotonic() - started
        for name, pid in pids.items():
            helpers[name].shares.append((cpu_seconds(pid) - before[name]) / elapsed)
            helpers[name].memory.append(private_bytes(pid))
    return helpers


def _result(helpers: dict[str, _Helper], peers: int, seconds: float) -> Result:
    # Of the whole time: a median would hide what happens only now and then.
    means = {name: sum(each.shares) / len(each.shares) for name, each in helpers.items()}
    shares = {name: summarize(each.shares) for name, each in helpers.items()}
    memory = {name: summarize(each.memory) for name, each in helpers.items()}
    figures: dict[str, float] = {
        "helper_cpu_share": max(means.values()),
        "helper_rss_bytes": max(summary.highest for summary in memory.values()),
        "all_helpers_cpu_share": sum(means.values()),
    }
    for name in helpers:
        figures |= {
            f"{name}_cpu_share": means[name],
            f"{name}_rss_bytes": memory[name].p50,
        }
    return Result(
        benchmark="idle",
        transport=read_transport(),
        parameters={"peers": peers, "seconds": seconds},
        figures=figures,
        tables=(
            _table("Percent of a core", shares, 0.01),
            _table("Megabytes of its own", memory, MB),
        ),
        chart=_chart(shares),
        notes=(
            "Over the whole time: "
            + ", ".join(f"{name} {share:.2%}" for name, share in means.items())
            + " of a core. Memory is resident memory without the tier, which all map.",
        ),
    )


def _table(title: str, found: dict[str, Summary], per_unit: float) -> Table:
    rows = [(name, *summary_cells(summary, per_unit, 2)) for name, summary in found.items()]
    return Table(title, ("", *SUMMARY_COLUMNS), tuple(rows))


def _chart(shares: dict[str, Summary]) -> Chart:
    names: Sequence[str] = list(shares)
    points = {float(at): shares[name] for at, name in enumerate(names)}
    return Chart(
        "Helpers of an idle engine",
        "",
        "percent of a core (median, middle half)",
        (series("processor", points, 0.01),),
        ticks=tuple(names),
    )
