"""How costs grow: with keys per lookup, blocks per tier, peers, and pulls at once.

What should stay flat is told from what may grow by a slope (seconds more for each one more)
and by an exponent (0 flat, 1 proportional).
"""

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from mpkv_cli.bench.probe import Probe
from mpkv_cli.bench.progress import Progress
from mpkv_cli.bench.raw import read_transport
from mpkv_cli.bench.resources import cpu_seconds, need_memory
from mpkv_cli.bench.result import Chart, Result, Table, series
from mpkv_cli.bench.standin import KEY_SIZE, make_keys
from mpkv_cli.bench.summary import Summary, growth_exponent, line_slope, summarize
from mpkv_cli.bench.worker import Worker

# Content does not matter here, so blocks are as small as a READ can sensibly be.
BLOCK_BYTES = 256
LABEL = "scale"
TIER_PER_KEY = 4
KEYS_PER_PULL = 16
PAUSE_S = (0.0002, 0.002)
WARM_UP = 10
PULLS_S = 120.0


@dataclass(frozen=True)
class Plan:
    """Where each cost is measured: `asks` lookups at each point, `rounds` times all pulls.
    Lookups in tiers of different sizes, and beside other peers, are of `lookup_keys` keys."""

    keys: Sequence[int]
    blocks: Sequence[int]
    peers: Sequence[int]
    pulls: Sequence[int]
    lookup_keys: int
    asks: int
    rounds: int


@dataclass
class _Growth:
    """Seconds at each point; `cpu` is the control plane's processor time for each."""

    name: str
    what: str
    per: str
    points: dict[float, Summary] = field(default_factory=dict)
    cpu: dict[float, float] = field(default_factory=dict)

    def slope(self) -> float:
        return line_slope(list(self.points), [summary.p50 for summary in self.points.values()])

    def exponent(self) -> float:
        medians = [summary.p50 for summary in self.points.values()]
        return growth_exponent(list(self.points), medians)


def measure(plan: Plan, progress: Progress) -> Result:
    need_memory(2 * max(plan.blocks) * BLOCK_BYTES, "Lower --blocks.")
    with ExitStack() as stack:
        progress.say("starting a source")
        most = max(*plan.keys, max(plan.pulls) * KEYS_PER_PULL)
        source, address = _open(stack, most * TIER_PER_KEY, most)
        growths = [
            _by_keys(source, address, plan, progress),
            _by_blocks(plan, progress),
            _by_peers(address, plan, progress),
            _by_pulls(address, plan, progress),
        ]
    return _result(growths, plan)


# --- measuring -------------------------------------------------------------------------


def _by_keys(source: Worker, address: str, plan: Plan, progress: Progress) -> _Growth:
    growth = _Growth("keys", "grant for this many keys", "key")
    with Probe(address, BLOCK_BYTES) as probe:
        for count in plan.keys:
            progress.say(f"{count:,} keys")
            _ask(growth, count, [probe], [make_keys(LABEL, 0, count)], plan.asks, source)
    return growth


def _by_blocks(plan: Plan, progress: Progress) -> _Growth:
    growth = _Growth("blocks", f"grant for {plan.lookup_keys:,} keys, tier of this size", "block")
    for blocks in plan.blocks:
        with ExitStack() as stack:
            progress.say(f"a tier of {blocks:,} blocks")
            source, address = _open(stack, blocks, blocks)
            probe = stack.enter_context(Probe(address, BLOCK_BYTES))
            keys = make_keys(LABEL, 0, blocks)
            lookups = [_sample(keys, plan.lookup_keys) for _ in range(plan.asks)]
            _ask(growth, blocks, [probe], lookups, plan.asks, source)
    return growth


def _by_peers(like: str, plan: Plan, progress: Progress) -> _Growth:
    """Each peer has looked up here before, is connected both ways, and takes its turn."""
    growth = _Growth("peers", f"grant for {plan.lookup_keys:,} keys, this many peers", "peer")
    for count in plan.peers:
        with ExitStack() as stack:
            progress.say(f"{count} peers")
            silent = stack.enter_context(Worker("silent"))
            mute = silent.call("open_peers", like=like, block_bytes=BLOCK_BYTES, count=count)
            blocks = TIER_PER_KEY * plan.lookup_keys
            source, address = _open(stack, blocks, plan.lookup_keys, mute)
            source.call("wait_connected", count=count)
            first = stack.enter_context(Probe(address, BLOCK_BYTES, "peer-0"))
            probes = [first]
            for number in range(1, count):
                probes.append(Probe(address, BLOCK_BYTES, f"peer-{number}", beside=first))
            keys = make_keys(LABEL, 0, plan.lookup_keys)
            _ask(growth, count, probes, [keys], plan.asks, source)
    return growth


def _by_pulls(address: str, plan: Plan, progress: Progress) -> _Growth:
    growth = _Growth("pulls", f"all of this many pulls of {KEYS_PER_PULL} keys at once", "pull")
    with ExitStack() as stack:
        blocks = max(plan.pulls) * KEYS_PER_PULL * TIER_PER_KEY
        destination, _ = _open(stack, blocks, 0, [address])
        destination.call("wait_peers", count=1)
        control = destination.call("pids")["control"]
        for count in plan.pulls:
            progress.say(f"{count} pulls at once")
            wanted = {"peer": address, "label": LABEL, "count": KEYS_PER_PULL, "pulls": count}
            destination.call("pull_many", limit_s=PULLS_S, **wanted)
            before = cpu_seconds(control)
            seconds = [
                destination.call("pull_many", limit_s=PULLS_S, **wanted) for _ in range(plan.rounds)
            ]
            growth.cpu[count] = (cpu_seconds(control) - before) / plan.rounds
            growth.points[count] = summarize(seconds)
    return growth


def _open(
    stack: ExitStack, blocks: int, stored: int, peers: Sequence[str] = ()
) -> tuple[Worker, str]:
    worker = stack.enter_context(Worker("engine"))
    address: str = worker.call(
        "open", node="engine", blocks=blocks, block_bytes=BLOCK_BYTES, peers=list(peers)
    )
    worker.call("store", label=LABEL, count=stored)
    return worker, address


def _ask(
    growth: _Growth,
    point: int,
    probes: Sequence[Probe],
    lookups: Sequence[bytes],
    asks: int,
    source: Worker,
) -> None:
    for number in range(max(WARM_UP, len(probes))):
        probe = probes[number % len(probes)]
        probe.confirm(probe.ask(lookups[number % len(lookups)]).grant)
    control = source.call("pids")["control"]
    seconds = []
    before = cpu_seconds(control)
    for number in range(asks):
        time.sleep(random.uniform(*PAUSE_S))
        probe = probes[number % len(probes)]
        granted = probe.ask(lookups[number % len(lookups)])
        seconds.append(granted.seconds)
        probe.confirm(granted.grant)
    growth.cpu[point] = (cpu_seconds(control) - before) / asks
    growth.points[point] = summarize(seconds)


def _sample(keys: bytes, count: int) -> bytes:
    """`count` of the keys, from anywhere."""
    positions = random.sample(range(len(keys) // KEY_SIZE), count)
    return b"".join(keys[at * KEY_SIZE : (at + 1) * KEY_SIZE] for at in positions)


# --- showing ---------------------------------------------------------------------------


def _result(growths: Sequence[_Growth], plan: Plan) -> Result:
    figures: dict[str, float] = {}
    for growth in growths:
        figures |= {
            f"{growth.name}_slope_s": growth.slope(),
            f"{growth.name}_exponent": growth.exponent(),
        }
        for point, summary in growth.points.items():
            figures[f"{growth.name}_{point:g}_p50_s".replace("+", "")] = summary.p50
    return Result(
        benchmark="scale",
        transport=read_transport(),
        parameters={
            "keys": list(plan.keys),
            "blocks": list(plan.blocks),
            "peers": list(plan.peers),
            "pulls": list(plan.pulls),
            "lookup_keys": plan.lookup_keys,
            "asks": plan.asks,
            "rounds": plan.rounds,
        },
        figures=figures,
        tables=(_slopes(growths), *(_points(growth) for growth in growths)),
        chart=_chart(growths),
        notes=(
            "Slope: microseconds more for each one more, by least squares on the medians. "
            "Exponent: of the power law that fits best; 0 is flat, 1 proportional. Lookups in "
            "tiers of different sizes are of keys from anywhere in them. Each simulated peer is "
            "connected both ways and asks in its turn.",
        ),
    )


def _slopes(growths: Sequence[_Growth]) -> Table:
    rows = [
        (
            growth.what,
            f"{min(growth.points):,} to {max(growth.points):,}",
            f"{growth.slope() * 1e6:.4f}",
            growth.per,
            f"{growth.exponent():.2f}",
        )
        for growth in growths
    ]
    columns = ("time until", "from, to", "us more per", "each", "exponent")
    return Table("Growth", columns, tuple(rows))


def _points(growth: _Growth) -> Table:
    rows = [
        (
            f"{point:,}",
            f"{summary.n:,}",
            f"{summary.p50 * 1e3:.3f}",
            f"{summary.p99 * 1e3:.3f}",
            f"{summary.quartiles[0] * 1e3:.3f}-{summary.quartiles[1] * 1e3:.3f}",
            f"{growth.cpu[point] * 1e3:.3f}",
        )
        for point, summary in growth.points.items()
    ]
    columns = (f"{growth.per}s", "n", "p50", "p99", "middle half", "control plane's CPU")
    return Table(f"Milliseconds: {growth.what}", columns, tuple(rows))


def _chart(growths: Sequence[_Growth]) -> Chart:
    return Chart(
        "How costs grow",
        "how many",
        "milliseconds (median, middle half)",
        tuple(series(growth.what, growth.points, 1e-3) for growth in growths),
        log="xy",
    )
