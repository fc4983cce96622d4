"""All benchmarks in turn, each in a process of its own, and one report of them."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mpkv.errors import HelperFailed
from mpkv_cli.bench.machine import machine_line
from mpkv_cli.bench.show import as_markdown

REPORT = "report.md"
BENCHMARK_S = 3600.0


def run_all(
    benchmarks: Sequence[str], output: Path, quick: bool, progress: Callable[[str], None]
) -> Path:
    """Leave `<name>.json` and `<name>.png` of each and the report in `output`.

    One that fails does not keep the others from running; HelperFailed names them at the end.
    """
    output.mkdir(parents=True, exist_ok=True)
    found: list[tuple[dict[str, Any], str]] = []
    failed: list[str] = []
    for benchmark in benchmarks:
        progress(f"{benchmark} ({len(found) + len(failed) + 1} of {len(benchmarks)})")
        result = _run(benchmark, output, quick)
        if result is None:
            failed.append(benchmark)
        else:
            found.append((result, f"{benchmark}.png"))
    report = output / REPORT
    report.write_text(_report(found, failed))
    if failed:
        raise HelperFailed(f"no result of: {', '.join(failed)}. The others are in {report}.")
    return report


def _run(benchmark: str, output: Path, quick: bool) -> dict[str, Any] | None:
    """Its JSON; None if it failed, which it has explained on stderr."""
    command = [sys.executable, "-P", "-m", "mpkv_cli.main", "bench", benchmark, "--json"]
    command += ["--plot", str(output / f"{benchmark}.png"), *(["--quick"] if quick else [])]
    finished = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=BENCHMARK_S
    )
    if finished.returncode:
        return None
    (output / f"{benchmark}.json").write_bytes(finished.stdout)
    result: dict[str, Any] = json.loads(finished.stdout)
    return result


def _report(found: Sequence[tuple[dict[str, Any], str]], failed: Sequence[str]) -> str:
    parts = ["# mpkv's benchmarks", ""]
    if found:
        machine = found[0][0]["machine"]
        parts += [f"{machine['date']}, on a {machine_line(machine)}.", ""]
    parts += ["Repeat with `make bench`, or one with `mpkv bench NAME`.", ""]
    parts += [f"**{benchmark} failed.**\n" for benchmark in failed]
    parts += [as_markdown(result, plot) for result, plot in found]
    return "\n".join(parts)
