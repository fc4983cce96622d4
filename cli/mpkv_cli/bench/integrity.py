"""What it costs to check blocks: the same pull by engines that check all, some and none.

They pull in turns, in one run, from a source that has hashed its blocks soon after storing
them. The last also pulls from one that checks nothing itself, blocks stored just before:
that source hashes them from the grant on, while they are READ.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from mpkv.cluster.settings import Integrity
from mpkv_cli.bench.progress import Progress
from mpkv_cli.bench.resources import need_memory, total_cpu_seconds
from mpkv_cli.bench.result import SUMMARY_COLUMNS, Table, summary_cells
from mpkv_cli.bench.summary import Summary, summarize
from mpkv_cli.bench.worker import Worker

LABEL = "checked"
TIER_PER_BLOCK = 4
PULL_S = 120.0
GB = 1e9


@dataclass
class Checked:
    """Samples of one way to pull."""

    name: str
    source: Worker
    destination: Worker
    peer: str
    # Whether its source gets fresh blocks for each pull.
    fresh: bool = False
    confirmed_s: list[float] = field(default_factory=list)
    source_cpu_s: float = 0.0
    destination_cpu_s: float = 0.0

    def pull(self, count: int, turn: int) -> None:
        label = LABEL
        if self.fresh:
            label = f"{LABEL} {turn}"
            self.source.call("store", label=label, count=count, write=True)
        pids = [list(each.call("pids").values()) for each in (self.source, self.destination)]
        before = [total_cpu_seconds(each) for each in pids]
        wanted = {"peer": self.peer, "label": label, "count": count}
        (times,) = self.destination.call("pull", limit_s=PULL_S, **wanted)
        self.confirmed_s.append(times["confirmed_s"])
        after = [total_cpu_seconds(each) for each in pids]
        self.source_cpu_s += after[0] - before[0]
        self.destination_cpu_s += after[1] - before[1]

    def summary(self) -> Summary:
        return summarize(self.confirmed_s)


def measure_checking(
    levels: Sequence[Integrity], block_bytes: int, count: int, repeats: int, progress: Progress
) -> tuple[dict[str, float], Table]:
    """Figures and a table; pulls that check nothing are always among them."""
    tier = {"blocks": count * TIER_PER_BLOCK, "block_bytes": block_bytes}
    engines = 2 + 1 + len(levels)
    need_memory(
        engines * tier["blocks"] * block_bytes, "Lower --block-bytes, or leave out --integrity."
    )
    progress.say(f"starting {engines} engines to compare what checking costs")
    with ExitStack() as stack:
        source, unhashed = (stack.enter_context(Worker("engine")) for _ in range(2))
        peer = source.call("open", node="source", integrity=Integrity.FULL, **tier)
        source.call("store", label=LABEL, count=count, write=True)
        source.call("wait_count", name="blocks_hashed", at_least=count)
        other = unhashed.call("open", node="unhashed", **tier)
        ways = []
        for level in dict.fromkeys((Integrity.OFF, *levels)):
            destination = stack.enter_context(Worker("engine"))
            destination.call("open", node=level, peers=[peer, other], integrity=level, **tier)
            ways.append(Checked(level, source, destination, peer))
        last = ways[-1]
        ways.append(
            Checked(f"{last.name}, hashed while READ", unhashed, last.destination, other, True)
        )
        for turn in range(repeats + 1):
            for way in ways:
                progress.say(f"{way.name}: {turn} of {repeats}")
                way.pull(count, turn)
        for way in ways:
            # The first one connects, and maps what it hashes.
            del way.confirmed_s[0]
    moved_gb = (repeats + 1) * count * block_bytes / GB
    return _figures(ways), _table(ways, moved_gb)


def _figures(ways: Sequence[Checked]) -> dict[str, float]:
    figures = {}
    for way in ways:
        name = "fresh" if way.fresh else way.name
        figures[f"checked_{name}_p50_s"] = way.summary().p50
        figures[f"checked_{name}_to_off"] = way.summary() / ways[0].summary()
    return figures


def _table(ways: Sequence[Checked], moved_gb: float) -> Table:
    rows = tuple(
        (
            way.name,
            f"{way.summary() / ways[0].summary():.2f}",
            *summary_cells(way.summary(), 1e-3),
            f"{way.source_cpu_s / moved_gb:.3f}",
            f"{way.destination_cpu_s / moved_gb:.3f}",
        )
        for way in ways
    )
    columns = ("integrity", "to off", *SUMMARY_COLUMNS, "CPU s/GB, source", "destination")
    return Table("Milliseconds until the confirmation, by what is checked", columns, rows)
