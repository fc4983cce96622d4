"""How soon a new peer can be read, and who loses what meanwhile.

The destination is replaced again and again by a new one, so that each time it meets the
source for the first time: by a pull (cold), or in the background before any pull (warmed).
A spinning Python thread in its engine shows whether meeting a peer costs the engine its
GIL; a long READ from a peer that it knows, whether others wait.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from mpkv_cli.bench.progress import Progress
from mpkv_cli.bench.raw import RawReads
from mpkv_cli.bench.resources import need_memory
from mpkv_cli.bench.result import SUMMARY_COLUMNS, Chart, Result, Series, Table, summary_cells
from mpkv_cli.bench.summary import Summary, summarize
from mpkv_cli.bench.worker import Worker

LABEL = "register"
LONG = "long"
HEADLINE_BLOCKS = 19_599
# Of a peer's blocks: at most this many bytes, and a block no larger than that.
PEER_BYTES = 2 << 30
LARGEST_BLOCK = 64 << 10
# A grant may pin a quarter of a tier, pulls may fill a quarter of one.
TIER_PER_BLOCK = 4
SPIN_S = 0.25
# Between pulls: as long as the first one finds everybody asleep, the later ones must too.
PAUSE_S = 0.1
DESCRIBED = 50


@dataclass
class _Size:
    """Samples for peers of one size; seconds but where it says otherwise."""

    blocks: int
    describe: list[float] = field(default_factory=list)
    added: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    later: list[float] = field(default_factory=list)
    # Later ones without a pause, when cores are awake and caches full.
    at_once: list[float] = field(default_factory=list)
    # Rounds of a spinning thread per second.
    spin_alone: list[float] = field(default_factory=list)
    spin_meanwhile: list[float] = field(default_factory=list)
    long_alone: list[float] = field(default_factory=list)
    long_meanwhile: list[float] = field(default_factory=list)

    @property
    def block_bytes(self) -> int:
        # Whole pages.
        return max(min(PEER_BYTES // self.blocks, LARGEST_BLOCK) >> 12 << 12, 4096)

    def lost_spinning(self) -> float:
        """The share of a spinning thread's rounds that a new peer costs while it is met."""
        return 1 - summarize(self.spin_meanwhile).p50 / summarize(self.spin_alone).p50

    def lost_reading(self) -> float:
        """Seconds by which a long pull is later when a new peer is met meanwhile."""
        return summarize(self.long_meanwhile).p50 - summarize(self.long_alone).p50


@dataclass(frozen=True)
class _Plan:
    pull_blocks: int
    long_bytes: int
    repeats: int
    later: int


def measure(
    *,
    blocks: Sequence[int],
    pull_blocks: int,
    long_bytes: int,
    repeats: int,
    later: int,
    progress: Progress,
) -> Result:
    """`repeats` destinations of each kind meet a peer of each size; `later` pulls of
    `pull_blocks` follow each first one. The long READ is of `long_bytes`."""
    plan = _Plan(pull_blocks, long_bytes, repeats, later)
    sizes = [_Size(count) for count in blocks]
    for size in sizes:
        transport = _measure_size(size, plan, progress)
    return _result(sizes, plan, transport)


def _measure_size(size: _Size, plan: _Plan, progress: Progress) -> str:
    long_blocks = max(plan.long_bytes // size.block_bytes, 1)
    tier_blocks = (long_blocks + plan.pull_blocks) * TIER_PER_BLOCK
    need_memory(
        size.block_bytes * (2 * tier_blocks + 2 * size.blocks),
        "Lower --blocks or --long-bytes.",
    )
    label = f"{size.blocks:,} blocks"
    progress.say(f"{label}: describing them to NIXL")
    with RawReads(size.blocks, size.block_bytes, reader_blocks=1) as raw:
        size.describe = raw.reader.call("describe_s", blocks=size.blocks, repeats=DESCRIBED)
        raw.reader.call("read_run", count=1, post=1, repeats=1)
        transport = raw.transport()
    with ExitStack() as stack:
        source, known, destination = (stack.enter_context(Worker("engine")) for _ in range(3))
        progress.say(f"{label}: starting the peers")
        tier = {"blocks": tier_blocks, "block_bytes": size.block_bytes}
        new = source.call("open", node="source", blocks=size.blocks, block_bytes=size.block_bytes)
        source.call("store", label=LABEL, count=plan.pull_blocks, write=True)
        known_address = known.call("open", node="known", **tier)
        known.call("store", label=LONG, count=long_blocks, write=True)
        short = {"peer": new, "label": LABEL, "count": plan.pull_blocks}
        long = {"peer": known_address, "label": LONG, "count": long_blocks}

        def start(peer: str) -> None:
            """A destination that has never met the source, and has warmed `peer`."""
            destination.call("open", node="destination", peers=[peer], trace=True, **tier)
            destination.call("wait_peers", count=1)

        for number in range(plan.repeats):
            progress.say(f"{label}: new destinations, {number + 1} of {plan.repeats}")
            start(known_address)
            size.spin_alone.append(destination.call("spin", seconds=SPIN_S))
            met = destination.call("spin_and_pull", seconds=SPIN_S, **short)
            size.spin_meanwhile.append(met["rate"])
            size.cold.append(met["confirmed_s"])
            size.added.append(destination.call("added_s")[-1])

            start(known_address)
            destination.call("pull", check=True, repeats=2, **long)
            alone = destination.call("pull", repeats=plan.later, **long)
            size.long_alone += [each["confirmed_s"] for each in alone]
            beside = destination.call(
                "pull_beside", first=list(long.values()), second=list(short.values())
            )
            size.long_meanwhile.append(beside[0]["confirmed_s"])

            start(new)
            pulls = destination.call("pull", repeats=1 + plan.later, pause_s=PAUSE_S, **short)
            size.first.append(pulls[0]["confirmed_s"])
            size.later += [each["confirmed_s"] for each in pulls[1:]]
            at_once = destination.call("pull", repeats=plan.later, **short)
            size.at_once += [each["confirmed_s"] for each in at_once]
    return transport


def _result(sizes: Sequence[_Size], plan: _Plan, transport: str) -> Result:
    figures: dict[str, float] = {}
    headline = next((size for size in sizes if size.blocks == HEADLINE_BLOCKS), sizes[0])
    for size in [headline, *(size for size in sizes if size is not headline)]:
        suffix = "" if size is headline else f"_{size.blocks}_blocks"
        first, later = summarize(size.first), summarize(size.later)
        figures |= {
            f"describe_s{suffix}": summarize(size.describe).p50,
            f"added_s{suffix}": summarize(size.added).p50,
            f"cold_pull_s{suffix}": summarize(size.cold).p50,
            f"first_pull_s{suffix}": first.p50,
            f"later_pull_s{suffix}": later.p50,
            f"pull_at_once_s{suffix}": summarize(size.at_once).p50,
            f"first_to_later{suffix}": first / later,
            f"long_alone_s{suffix}": summarize(size.long_alone).p50,
            f"long_meanwhile_s{suffix}": summarize(size.long_meanwhile).p50,
            f"spin_meanwhile_to_alone{suffix}": 1 - size.lost_spinning(),
        }
    return Result(
        benchmark="register",
        transport=transport,
        parameters={
            "blocks": [size.blocks for size in sizes],
            "block_bytes": [size.block_bytes for size in sizes],
            "pull_blocks": plan.pull_blocks,
            "long_bytes": plan.long_bytes,
            "repeats": plan.repeats,
            "later": plan.later,
            "headline_blocks": headline.blocks,
        },
        figures=figures,
        tables=(_times(sizes), _losses(sizes)),
        chart=_chart(sizes),
        notes=(
            "A cold pull meets its peer: connection, greeting, registration, lookup, READ and "
            "confirmation. A warmed peer was met in the background before. All pulls are "
            f"{PAUSE_S:g} s apart unless it says otherwise. The spinning thread "
            f"runs {SPIN_S:g} s from the start of the cold pull; where cores are few it also "
            "gives way to the helpers' own work.",
        ),
    )


def _rows(size: _Size) -> list[tuple[str, Summary]]:
    return [
        ("describe the blocks to NIXL", summarize(size.describe)),
        ("peer registered and warmed", summarize(size.added)),
        ("cold pull", summarize(size.cold)),
        ("first pull, peer warmed", summarize(size.first)),
        ("later pull", summarize(size.later)),
        ("later pull, one right after the other", summarize(size.at_once)),
        ("long pull from another peer, alone", summarize(size.long_alone)),
        ("the same while a peer is met", summarize(size.long_meanwhile)),
    ]


def _times(sizes: Sequence[_Size]) -> Table:
    rows = [
        (f"{size.blocks:,} blocks: {what}", *summary_cells(summary, 1e-3))
        for size in sizes
        for what, summary in _rows(size)
    ]
    return Table("Milliseconds", ("", *SUMMARY_COLUMNS), tuple(rows))


def _losses(sizes: Sequence[_Size]) -> Table:
    rows = [
        (
            f"{size.blocks:,} blocks",
            f"{size.lost_spinning():.1%}",
            f"{size.lost_reading() * 1e3:.2f}",
            f"{summarize(size.first) / summarize(size.later):.2f}",
        )
        for size in sizes
    ]
    columns = (
        "",
        f"a spinning thread loses, of {SPIN_S:g} s",
        "a long READ loses, ms",
        "first / later pull",
    )
    return Table("What meeting a peer costs others", columns, tuple(rows))


def _chart(sizes: Sequence[_Size]) -> Chart:
    bars = []
    for position in (2, 3, 4):
        found = [_rows(size)[position] for size in sizes]
        bars.append(
            Series(
                found[0][0],
                tuple(float(at) for at in range(len(sizes))),
                tuple(summary.p50 * 1e3 for _, summary in found),
                tuple(summary.quartiles[0] * 1e3 for _, summary in found),
                tuple(summary.quartiles[1] * 1e3 for _, summary in found),
            )
        )
    return Chart(
        "Meeting a new peer",
        "blocks in the peer's tier",
        "milliseconds (median, middle half)",
        tuple(bars),
        ticks=tuple(f"{size.blocks:,}" for size in sizes),
    )
