"""`mpkv bench` and its benchmarks, as commands. Imports what measures only when it is to."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mpkv_cli.bench.against import NOTHING, VLLM_P2P

if TYPE_CHECKING:
    from mpkv_cli.bench.progress import Progress
    from mpkv_cli.bench.result import Result

Function = TypeVar("Function", bound=Callable[..., Any])


@click.group()
def bench() -> None:
    """Measure mpkv on this machine.

    Every benchmark starts what it needs, on this machine alone, and leaves nothing behind.
    For figures worth keeping let nothing else run meanwhile.
    """


def _report_options(command: Function) -> Function:
    """What all benchmarks have in common."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout."),
        click.option(
            "--plot",
            metavar="FILE.png",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Draw the result; needs matplotlib.",
        ),
    ):
        command = option(command)
    return command


def _quick(command: Function) -> Function:
    text = "A short run with tiny parameters: shows that it works."
    return click.option("--quick", is_flag=True, help=text)(command)


def _against(command: Function) -> Function:
    return click.option(
        "--against",
        type=click.Choice((VLLM_P2P, NOTHING)),
        default=VLLM_P2P,
        show_default=True,
        help="What mpkv is compared with in the same run.",
    )(command)


def _run(
    benchmark: str, measure: "Callable[[Progress], Result]", as_json: bool, plot: Path | None
) -> None:
    from mpkv_cli.bench.machine import Stolen, describe_machine, machine_line
    from mpkv_cli.bench.plot import check_plotting, draw
    from mpkv_cli.bench.progress import Progress
    from mpkv_cli.bench.show import as_text

    if plot is not None:
        check_plotting()
    machine, stolen = describe_machine(), Stolen()
    result = measure(Progress(benchmark))
    found = result.as_json({**machine, "stolen_share": stolen.share()})
    click.echo(as_text(found), err=as_json)
    if as_json:
        click.echo(json.dumps(found, indent=1))
    if plot is not None:
        draw(result.chart, machine_line(found["machine"]), plot)


@bench.command()
@click.option("--keys", multiple=True, type=click.IntRange(1, 100_000), default=(256, 2048, 7200))
@click.option("--turns", type=click.IntRange(1), default=10, show_default=True)
@click.option(
    "--asks", type=click.IntRange(1), default=100, show_default=True, help="Each turn, per state."
)
@click.option(
    "--step-s",
    type=click.FloatRange(0.001),
    default=0.58,
    show_default=True,
    help="How long a step of the busy source takes.",
)
@click.option(
    "--held",
    type=click.FloatRange(0, 1),
    default=0.9,
    show_default=True,
    help="The share of a step that is pure Python.",
)
@_against
@_quick
@_report_options
def lookup(
    keys: tuple[int, ...],
    turns: int,
    asks: int,
    step_s: float,
    held: float,
    against: str,
    quick: bool,
    as_json: bool,
    plot: Path | None,
) -> None:
    """How long a grant takes, the source idle and busy."""
    from mpkv_cli.bench.lookup import measure
    from mpkv_cli.bench.lookup_vllm import rival_named

    if quick:
        keys, turns, asks, step_s, against = (16, 64), 1, 5, 0.02, NOTHING

    def beside_rival(progress: "Progress") -> "Result":
        with rival_named(against, max(keys), progress) as rival:
            return measure(
                keys=keys,
                turns=turns,
                asks=asks,
                step_s=step_s,
                held=held,
                progress=progress,
                rival=rival,
            )

    _run("lookup", beside_rival, as_json, plot)


@bench.command()
@click.option(
    "--block-bytes",
    multiple=True,
    type=click.IntRange(4096),
    default=(64 << 10, 256 << 10, 1 << 20, 4 << 20),
)
@click.option("--counts", multiple=True, type=click.IntRange(1), default=(1, 16, 128, 1024, 7200))
@click.option(
    "--most-bytes",
    type=click.IntRange(4096),
    default=512 << 20,
    show_default=True,
    help="Leave out what is larger; memory for fifteen times as much is needed.",
)
@click.option("--repeats", type=click.IntRange(1), default=9, show_default=True)
@click.option(
    "--integrity",
    multiple=True,
    type=click.Choice(("off", "sampled", "full")),
    default=("sampled", "full"),
    help="Compare pulls that check their blocks with ones that do not; off: leave it out.",
)
@click.option(
    "--lanes",
    multiple=True,
    type=click.IntRange(0, 16),
    default=(1, 2, 3),
    help="Compare how many agents share a READ; 0: leave it out.",
)
@_quick
@_report_options
def pull(
    block_bytes: tuple[int, ...],
    counts: tuple[int, ...],
    most_bytes: int,
    repeats: int,
    integrity: tuple[str, ...],
    lanes: tuple[int, ...],
    quick: bool,
    as_json: bool,
    plot: Path | None,
) -> None:
    """How fast blocks move, beside bare NIXL and a plain copy."""
    from mpkv.cluster.settings import Integrity
    from mpkv_cli.bench.pull import measure

    if quick:
        block_bytes, counts, repeats = (16 << 10,), (1, 32), 1
    _run(
        "pull",
        lambda progress: measure(
            block_bytes=block_bytes,
            counts=counts,
            most_bytes=most_bytes,
            repeats=repeats,
            integrity=[Integrity(level) for level in integrity if level != Integrity.OFF],
            lanes=[number for number in lanes if number],
            progress=progress,
        ),
        as_json,
        plot,
    )


@bench.command()
@click.option(
    "--blocks",
    multiple=True,
    type=click.IntRange(64, 2_000_000),
    default=(19_599, 500_000),
    help="Of the new peer's tier.",
)
@click.option("--pull-blocks", type=click.IntRange(1), default=16, show_default=True)
@click.option("--long-bytes", type=click.IntRange(4096), default=128 << 20, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=7, show_default=True)
@click.option("--later", type=click.IntRange(1), default=10, show_default=True)
@_quick
@_report_options
def register(
    blocks: tuple[int, ...],
    pull_blocks: int,
    long_bytes: int,
    repeats: int,
    later: int,
    quick: bool,
    as_json: bool,
    plot: Path | None,
) -> None:
    """How soon a new peer can be read, and who loses what meanwhile."""
    from mpkv_cli.bench.register import measure

    if quick:
        blocks, long_bytes, repeats, later = (256,), 4 << 20, 1, 2
    _run(
        "register",
        lambda progress: measure(
            blocks=blocks,
            pull_blocks=pull_blocks,
            long_bytes=long_bytes,
            repeats=repeats,
            later=later,
            progress=progress,
        ),
        as_json,
        plot,
    )


@bench.command()
@click.option("--turns", type=click.IntRange(1), default=8, show_default=True)
@click.option("--steps", type=click.IntRange(1), default=300, show_default=True, help="Each turn.")
@click.option("--work-s", type=click.FloatRange(0.0001), default=0.005, show_default=True)
@click.option("--wait-s", type=click.FloatRange(0), default=0.005, show_default=True)
@click.option("--lookups", type=click.FloatRange(1), default=1000.0, show_default=True)
@click.option("--waiting", type=click.IntRange(1), default=128, show_default=True)
@click.option("--pulls", type=click.IntRange(1), default=50, show_default=True)
@click.option("--pull-keys", type=click.IntRange(1, 65_536), default=2048, show_default=True)
@_quick
@_report_options
def scheduler(quick: bool, as_json: bool, plot: Path | None, **options: Any) -> None:
    """What mpkv costs the engine's scheduler thread."""
    from mpkv_cli.bench.scheduler import Plan, measure

    if quick:
        options |= {"turns": 1, "steps": 20, "waiting": 8, "pulls": 3, "pull_keys": 64}
    _run("scheduler", lambda progress: measure(Plan(**options), progress), as_json, plot)


@bench.command()
@click.option("--records", type=click.IntRange(2), default=200_000, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=7, show_default=True)
@click.option("--wakes", type=click.IntRange(1), default=2000, show_default=True)
@_quick
@_report_options
def queue(
    records: int, repeats: int, wakes: int, quick: bool, as_json: bool, plot: Path | None
) -> None:
    """Records a second and wake-ups of mpkv's ring, beside other queues."""
    from mpkv_cli.bench.queues import measure

    if quick:
        records, repeats, wakes = 2000, 1, 20
    _run(
        "queue",
        lambda progress: measure(records=records, repeats=repeats, wakes=wakes, progress=progress),
        as_json,
        plot,
    )


@bench.command()
@click.option("--peers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.1), default=30.0, show_default=True)
@_quick
@_report_options
def idle(peers: int, seconds: float, quick: bool, as_json: bool, plot: Path | None) -> None:
    """What the helpers of an engine use while nothing happens."""
    from mpkv_cli.bench.idle import SETTLE_S, measure

    settle_s = SETTLE_S
    if quick:
        peers, seconds, settle_s = 1, 0.5, 0.0
    _run(
        "idle",
        lambda progress: measure(
            peers=peers, seconds=seconds, settle_s=settle_s, progress=progress
        ),
        as_json,
        plot,
    )


def _points(*default: int) -> dict[str, Any]:
    return {"multiple": True, "type": click.IntRange(1), "default": default}


@bench.command()
@click.option("--keys", **_points(1, 16, 256, 1024, 2048, 4096, 7200))
@click.option("--blocks", **_points(8192, 19_599, 131_072, 500_000))
@click.option("--peers", **_points(1, 8, 64))
@click.option("--pulls", **_points(1, 4, 16, 64, 256))
@click.option("--lookup-keys", type=click.IntRange(1), default=2048, show_default=True)
@click.option("--asks", type=click.IntRange(1), default=500, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=15, show_default=True)
@_quick
@_report_options
def scale(quick: bool, as_json: bool, plot: Path | None, **options: Any) -> None:
    """How costs grow with keys, blocks, peers and pulls."""
    from mpkv_cli.bench.scale import Plan, measure

    if quick:
        options |= {"keys": (1, 64), "blocks": (256, 1024), "peers": (1, 4), "pulls": (1, 8)}
        options |= {"lookup_keys": 16, "asks": 10, "rounds": 2}
    _run("scale", lambda progress: measure(Plan(**options), progress), as_json, plot)


@bench.command()
@click.option(
    "--busy",
    multiple=True,
    type=click.Choice(("none", "source", "destination")),
    default=("none", "source", "destination"),
    help="Which engine is busy; default: each in turn.",
)
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True)
@_against
@click.option(
    "--saturating-tokens",
    type=click.IntRange(512, 32_000),
    default=6144,
    show_default=True,
    help="Of each of the prompts that keep the destination busy.",
)
@click.option(
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build"),
    show_default=True,
    help="Where the model and logs go.",
)
@click.option(
    "--sync-load-budget",
    metavar="SIZE",
    default="",
    help="What both may load within a step, such as 64MiB; needs vLLM 0.33.",
)
@click.option("--trace-dir", metavar="DIR", default="", help="Where mpkv's events go.")
@_quick
@_report_options
def e2e(quick: bool, as_json: bool, plot: Path | None, **options: Any) -> None:
    """Two real engines: lookup delay and first token, whichever engine is busy."""
    from mpkv_cli.bench.e2e import Plan, measure

    if quick:
        options |= {"repeats": 1, "against": NOTHING, "saturating_tokens": 1024}
    _run("e2e", lambda progress: measure(Plan(**options), progress), as_json, plot)


@bench.command()
@click.argument("trace", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--blocks", **_points(5000, 10_000, 20_000), help="In the tier; repeat it.")
@click.option("--requests", type=click.IntRange(1), default=12_000, show_default=True)
@_quick
@_report_options
def tier(trace: Path | None, quick: bool, as_json: bool, plot: Path | None, **options: Any) -> None:
    """How many blocks of TRACE, or of chats made up, a tier hits beside other policies."""
    from mpkv_cli.bench.tier import measure

    if quick:
        options |= {"blocks": (100, 400), "requests": 300}
    _run("tier", lambda progress: measure(trace, **options, progress=progress), as_json, plot)


@bench.command(name="all")
@click.option(
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("bench"),
    show_default=True,
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_quick
def everything(output: Path, names: tuple[str, ...], quick: bool) -> None:
    """Run every benchmark, or those named, and write one report of them."""
    from mpkv_cli.bench.everything import run_all
    from mpkv_cli.bench.plot import check_plotting

    known = [name for name in bench.commands if name != "all"]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.BadParameter(f"no benchmark {unknown[0]!r}; there are {', '.join(known)}")
    check_plotting()
    report = run_all(names or known, output, quick, lambda text: click.echo(text, err=True))
    click.echo(f"The report is {report}")
