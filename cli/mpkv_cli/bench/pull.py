"""How fast blocks move, and what share that is of what the machine can do.

Each size is pulled, READ by bare NIXL and copied in turns, in one run. The blocks that
arrive are compared with the ones that were stored, once per size.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from mpkv.cluster.settings import Integrity
from mpkv_cli.bench.copying import Copies
from mpkv_cli.bench.integrity import measure_checking
from mpkv_cli.bench.lanes import measure_lanes
from mpkv_cli.bench.progress import Progress
from mpkv_cli.bench.raw import RawReads
from mpkv_cli.bench.resources import need_memory, total_cpu_seconds
from mpkv_cli.bench.result import SUMMARY_COLUMNS, Chart, Result, Series, Table, summary_cells
from mpkv_cli.bench.summary import Summary, summarize
from mpkv_cli.bench.worker import Worker

LABEL = "pull"
HEADLINE = (256 << 10, 1024)
# A grant may pin a quarter of the source's tier, pulls may fill a quarter of the destination's.
TIER_PER_BLOCK = 4
# Small sizes are measured more often, until about this much has moved or so often.
BYTES_PER_SIZE = 256 << 20
MOST_REPEATS = 40
PULL_S = 120.0
GB = 1e9


@dataclass
class _Size:
    """Samples of one size, in seconds."""

    block_bytes: int
    count: int
    pull: list[dict[str, float]] = field(default_factory=list)
    raw: dict[str, list[float]] = field(default_factory=dict)
    copy: dict[int, list[float]] = field(default_factory=dict)
    source_cpu_s: float = 0.0
    destination_cpu_s: float = 0.0

    @property
    def bytes(self) -> int:
        return self.block_bytes * self.count

    def summary(self, until: str) -> Summary:
        return summarize([each[until] for each in self.pull])

    def pull_rate(self) -> float:
        return self.bytes / self.summary("confirmed_s").p50

    def read_rate(self) -> float:
        """Of the READ alone, from the grant to the last byte."""
        reads = [each["read_s"] - each["granted_s"] for each in self.pull]
        return self.bytes / summarize(reads).p50

    def best_raw(self) -> tuple[str, float]:
        """The fastest pattern, by its median, and its rate."""
        rates = {name: self.bytes / summarize(found).p50 for name, found in self.raw.items()}
        best = max(rates, key=lambda name: rates[name])
        return best, rates[best]

    def copy_rate(self, threads: int) -> float:
        return self.bytes / summarize(self.copy[threads]).p50

    def cpu_per_gb(self, cpu_s: float) -> float:
        return cpu_s / (len(self.pull) * self.bytes / GB)


def measure(
    *,
    block_bytes: Sequence[int],
    counts: Sequence[int],
    most_bytes: int,
    repeats: int,
    integrity: Sequence[Integrity],
    lanes: Sequence[int],
    progress: Progress,
) -> Result:
    """Every count of every block size, unless together they are more than `most_bytes`; and
    for one of them what `integrity` costs and `lanes` bring."""
    sizes: list[_Size] = []
    for each in block_bytes:
        fitting = [count for count in counts if count * each <= most_bytes]
        if fitting:
            found, transport = _measure_blocks(each, fitting, repeats, progress)
            sizes += found
    left_out = [
        f"{count:,} x {_size(each)}"
        for each in block_bytes
        for count in counts
        if count * each > most_bytes
    ]
    notes = [
        "A pull is timed from its start in the engine to the source's confirmation. Rates are of "
        "medians. The best READ is the fastest pattern of bare NIXL: one post in order or at "
        "random, split into posts, or as one piece; making its requests is not counted. It lands, "
        "as a pull does, round and round in memory four times as large as the largest pull."
    ]
    if left_out:
        notes.append(f"Left out, for more than {_size(most_bytes)}: {', '.join(left_out)}.")
    figures, tables = _figures(sizes), [_rates(sizes), _times(sizes)]
    if integrity:
        size = _headline(sizes)
        costs, table = measure_checking(integrity, size.block_bytes, size.count, repeats, progress)
        figures |= costs
        tables.append(table)
        notes.append(
            f"What is checked: {size.count:,} x {_size(size.block_bytes)}, pulled in turns from a "
            'source that has hashed them already; "hashed while READ" from one that has not.'
        )
    if lanes:
        size = _headline(sizes)
        shared = [count for count in counts if size.count // 8 <= count <= size.count]
        gains, table = measure_lanes(lanes, size.block_bytes, shared, repeats, progress)
        figures |= gains
        tables.append(table)
        notes.append(f"Lanes: blocks of {_size(size.block_bytes)}, pulled in turns.")
    return Result(
        benchmark="pull",
        transport=transport,
        parameters={
            "block_bytes": list(block_bytes),
            "counts": list(counts),
            "most_bytes": most_bytes,
            "repeats": repeats,
            "integrity": list(integrity),
            "lanes": list(lanes),
        },
        figures=figures,
        tables=tuple(tables),
        chart=_chart(sizes),
        notes=tuple(notes),
    )


def _measure_blocks(
    block_bytes: int, counts: Sequence[int], repeats: int, progress: Progress
) -> tuple[list[_Size], str]:
    most = max(counts)
    tier_blocks = most * TIER_PER_BLOCK
    need_memory(
        block_bytes * (3 * tier_blocks + 3 * most), "Lower --most-bytes, or stop something else."
    )
    progress.say(f"starting two engines with blocks of {_size(block_bytes)}")
    with ExitStack() as stack:
        source = stack.enter_context(Worker("engine"))
        destination = stack.enter_context(Worker("engine"))
        tier = {"blocks": tier_blocks, "block_bytes": block_bytes}
        peer = source.call("open", node="source", **tier)
        source.call("store", label=LABEL, count=most, write=True)
        destination.call("open", node="destination", peers=[peer], **tier)
        raw = stack.enter_context(RawReads(most, block_bytes, reader_blocks=tier_blocks))
        copies = stack.enter_context(Copies(most * block_bytes))
        pids = [list(worker.call("pids").values()) for worker in (source, destination)]
        sizes = []
        for count in counts:
            size = _Size(block_bytes, count)
            progress.say(f"{count:,} blocks of {_size(block_bytes)}")
            wanted = {"peer": peer, "label": LABEL, "count": count}
            destination.call("pull", check=True, repeats=2, limit_s=PULL_S, **wanted)
            raw.patterns(count, 1)
            for _ in range(_repeats(size.bytes, repeats)):
                before = [total_cpu_seconds(each) for each in pids]
                size.pull += destination.call("pull", limit_s=PULL_S, **wanted)
                after = [total_cpu_seconds(each) for each in pids]
                size.source_cpu_s += after[0] - before[0]
                size.destination_cpu_s += after[1] - before[1]
                for pattern, seconds in raw.patterns(count, 1).items():
                    size.raw.setdefault(pattern, []).extend(seconds)
                for threads in (1, 2):
                    size.copy.setdefault(threads, []).append(copies.seconds(size.bytes, threads))
            sizes.append(size)
        return sizes, raw.transport()


def _repeats(size: int, repeats: int) -> int:
    return max(repeats, min(repeats * BYTES_PER_SIZE // size, MOST_REPEATS))


def _headline(sizes: Sequence[_Size]) -> _Size:
    return next(
        (size for size in sizes if (size.block_bytes, size.count) == HEADLINE),
        max(sizes, key=lambda size: size.bytes),
    )


def _figures(sizes: Sequence[_Size]) -> dict[str, float]:
    size = _headline(sizes)
    _, raw_rate = size.best_raw()
    best_copy = max(size.copy_rate(threads) for threads in size.copy)
    return {
        "bytes": size.bytes,
        "blocks": size.count,
        "pull_bytes_per_s": size.pull_rate(),
        "read_bytes_per_s": size.read_rate(),
        "raw_read_bytes_per_s": raw_rate,
        "copy_bytes_per_s": size.copy_rate(1),
        "copy_two_threads_bytes_per_s": size.copy_rate(2),
        "pull_to_raw_read": size.pull_rate() / raw_rate,
        "pull_to_copy": size.pull_rate() / best_copy,
        "pull_p50_s": size.summary("confirmed_s").p50,
        "pull_p99_s": size.summary("confirmed_s").p99,
        "granted_p50_s": size.summary("granted_s").p50,
        "last_byte_p50_s": size.summary("read_s").p50,
        "source_cpu_s_per_gb": size.cpu_per_gb(size.source_cpu_s),
        "destination_cpu_s_per_gb": size.cpu_per_gb(size.destination_cpu_s),
    }


def _rates(sizes: Sequence[_Size]) -> Table:
    rows = []
    for size in sizes:
        pattern, raw_rate = size.best_raw()
        copy_rate = max(size.copy_rate(threads) for threads in size.copy)
        rows.append(
            (
                f"{size.count:,} x {_size(size.block_bytes)}",
                f"{size.pull_rate() / GB:.2f}",
                f"{size.read_rate() / GB:.2f}",
                f"{raw_rate / GB:.2f}",
                pattern,
                f"{size.pull_rate() / raw_rate:.0%}",
                f"{size.copy_rate(1) / GB:.2f}",
                f"{size.copy_rate(2) / GB:.2f}",
                f"{size.pull_rate() / copy_rate:.0%}",
                f"{size.cpu_per_gb(size.source_cpu_s):.3f}",
                f"{size.cpu_per_gb(size.destination_cpu_s):.3f}",
            )
        )
    columns = (
        "GB/s",
        "pull",
        "its READ",
        "best raw READ",
        "which",
        "pull / raw",
        "copy, 1 thread",
        "2 threads",
        "pull / copy",
        "CPU s/GB, source",
        "destination",
    )
    return Table("Rates", columns, tuple(rows))


def _times(sizes: Sequence[_Size]) -> Table:
    rows = []
    for size in sizes:
        for until, what in (
            ("granted_s", "grant"),
            ("read_s", "last byte"),
            ("confirmed_s", "confirmation"),
        ):
            label = f"{size.count:,} x {_size(size.block_bytes)}: until the {what}"
            rows.append((label, *summary_cells(size.summary(until), 1e-3)))
    return Table("Milliseconds from a pull's start", ("", *SUMMARY_COLUMNS), tuple(rows))


def _chart(sizes: Sequence[_Size]) -> Chart:
    lines = []
    for block_bytes in dict.fromkeys(size.block_bytes for size in sizes):
        mine = [size for size in sizes if size.block_bytes == block_bytes]
        lines.append(_line(f"pull, blocks of {_size(block_bytes)}", mine))
        if block_bytes == HEADLINE[0] or len(lines) == 1:
            raw = [size.best_raw()[1] / GB for size in mine]
            x = tuple(size.bytes / (1 << 20) for size in mine)
            lines.append(Series(f"best raw READ, {_size(block_bytes)}", x, tuple(raw)))
    largest = [size for size in sizes if size.block_bytes == sizes[-1].block_bytes]
    x = tuple(size.bytes / (1 << 20) for size in largest)
    lines.append(Series("copy, 1 thread", x, tuple(size.copy_rate(1) / GB for size in largest)))
    return Chart("Pulls against the machine's limits", "MiB", "GB/s", tuple(lines), log="x")


def _line(label: str, sizes: Sequence[_Size]) -> Series:
    spans = [size.summary("confirmed_s").quartiles for size in sizes]
    return Series(
        label,
        tuple(size.bytes / (1 << 20) for size in sizes),
        tuple(size.pull_rate() / GB for size in sizes),
        tuple(size.bytes / span[1] / GB for size, span in zip(sizes, spans, strict=True)),
        tuple(size.bytes / span[0] / GB for size, span in zip(sizes, spans, strict=True)),
    )


def _size(count: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << power:
            return f"{count / (1 << power):g} {unit}"
    return f"{count} B"
