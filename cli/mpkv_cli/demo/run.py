"""The demo from start to end: servers up, requests, table, servers down."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import click

from mpkv.cluster.config import load_cluster, names_a_path
from mpkv.errors import ConfigRefused, HelperFailed
from mpkv_cli.demo.measure import PROMPT_TOKENS, Sample, measure, warm_up
from mpkv_cli.demo.replica import Replica, stopped_at_exit, wait_healthy
from mpkv_cli.demo.report import Result, describe
from mpkv_cli.tiny_model import TINY_MODEL, make_tiny_model

REPEATS = 3
# Two servers on two cores take about a minute.
START_S = 300.0

Progress = Callable[[str], None]


def run_demo(config: str, output: Path) -> None:
    """Show what `config`'s second node saves by reusing the first one's cache.

    Logs and `demo.json` go to `output`. Raises MpkvError unless everything was reused
    and every output identical.
    """
    cluster = load_cluster(config)
    if len(cluster.nodes) < 2:
        raise ConfigRefused(f"{config}: the demo needs two nodes, found one; add a [[node]].")
    a, b = (Replica(cluster, node, output / f"demo-{node.name}.log") for node in cluster.nodes[:2])
    started = time.monotonic()

    def progress(text: str) -> None:
        click.echo(f"[{time.monotonic() - started:4.0f} s] {text}")

    output.mkdir(parents=True, exist_ok=True)
    model = Path(cluster.model())
    # Never in a folder that somebody else may have meant.
    if names_a_path(cluster.vllm.model) and model.name == TINY_MODEL:
        make_tiny_model(model)
    with stopped_at_exit([a, b], progress):
        progress(f"starting replicas {a.name} and {b.name}, about a minute; logs: {a.log}, {b.log}")
        for replica in (a, b):
            replica.start()
        wait_healthy((a, b), START_S, progress)
        progress("one warm-up prompt")
        warm_up(a, b)
        result = _measure_all(a, b, progress)
    click.echo(f"\n{result.table()}")
    click.echo(f"medians [range] of {REPEATS} prompts; samples: {output / 'demo.json'}")
    (output / "demo.json").write_text(json.dumps(result.as_json(), indent=2) + "\n")
    if failures := result.failures():
        raise HelperFailed(f"{'; '.join(failures)}; see {a.log} and {b.log}")


def _measure_all(a: Replica, b: Replica, progress: Progress) -> Result:
    def samples(state: str) -> list[Sample]:
        taken = []
        for number in range(1, REPEATS + 1):
            progress(
                f"prompt {number} of {REPEATS}, {PROMPT_TOKENS:,} tokens, with {a.name} {state}"
            )
            sample = measure(a, b, f"{state}-{number}", busy=state == "busy")
            progress(f"  {describe(sample)}")
            taken.append(sample)
        return taken

    return Result(idle=samples("idle"), busy=samples("busy"))
