"""How many NIXL agents should share a READ: the same pulls by engines that differ in that alone.

They pull in turns, in one run, from one source.
"""

from collections.abc import Sequence
from contextlib import ExitStack

from mpkv_cli.bench.progress import Progress
from mpkv_cli.bench.resources import need_memory, total_cpu_seconds
from mpkv_cli.bench.result import SUMMARY_COLUMNS, Table, summary_cells
from mpkv_cli.bench.summary import summarize
from mpkv_cli.bench.worker import Worker

LABEL = "lanes"
TIER_PER_BLOCK = 4
PULL_S = 120.0
GB = 1e9


def measure_lanes(
    lanes: Sequence[int],
    block_bytes: int,
    counts: Sequence[int],
    repeats: int,
    progress: Progress,
) -> tuple[dict[str, float], Table]:
    """Pulls of each of `counts` blocks by an engine for each of `lanes`."""
    most = max(counts)
    tier = {"blocks": most * TIER_PER_BLOCK, "block_bytes": block_bytes}
    need_memory((1 + len(lanes)) * tier["blocks"] * block_bytes, "Lower --block-bytes or --counts.")
    figures: dict[str, float] = {}
    rows = []
    with ExitStack() as stack:
        progress.say(f"starting {1 + len(lanes)} engines to compare lanes")
        source = stack.enter_context(Worker("engine"))
        peer = source.call("open", node="source", **tier)
        source.call("store", label=LABEL, count=most, write=True)
        engines: dict[int, Worker] = {}
        for number in lanes:
            engines[number] = stack.enter_context(Worker("engine"))
            engines[number].call("open", node=f"{number}", peers=[peer], lanes=number, **tier)
        for count in counts:
            found: dict[int, list[float]] = {number: [] for number in lanes}
            cpu_s = dict.fromkeys(lanes, 0.0)
            wanted = {"peer": peer, "label": LABEL, "count": count, "limit_s": PULL_S}
            for turn in range(repeats + 1):
                progress.step(turn, repeats + 1, f"lanes: pulls of {count:,} blocks")
                for number, engine in engines.items():
                    pids = list(engine.call("pids").values())
                    before = total_cpu_seconds(pids)
                    (times,) = engine.call("pull", check=turn == 0, **wanted)
                    # The first one connects.
                    if turn:
                        found[number].append(times["confirmed_s"])
                        cpu_s[number] += total_cpu_seconds(pids) - before
            for number in lanes:
                summary = summarize(found[number])
                figures[f"lanes_{number}_{count}_blocks_p50_s"] = summary.p50
                size = count * block_bytes
                rows.append(
                    (
                        f"{count:,} blocks, {number}",
                        f"{size / summary.p50 / GB:.2f}",
                        *summary_cells(summary, 1e-3),
                        f"{cpu_s[number] / (repeats * size / GB):.3f}",
                    )
                )
    columns = ("lanes", "GB/s", *SUMMARY_COLUMNS, "CPU s/GB, destination")
    return figures, Table("Milliseconds until the confirmation, by lanes", columns, tuple(rows))
