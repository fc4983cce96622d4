"""Every benchmark of `mpkv bench`, run as a user runs it but with tiny parameters.

What they measure is not judged here: only that they measure, say so, and leave nothing.
"""

import json
import math
import os
import subprocess
import time
from pathlib import Path

import pytest

from mpkv.errors import HelperFailed
from mpkv_cli.bench.everything import run_all
from tests.cli.command import run_mpkv
from tests.support.leftovers import MARK, Leftovers

FIGURES = {
    "lookup": ("grant_idle_p50_s", "grant_busy_p50_s", "grant_busy_p99_s", "zmq_p50_s"),
    "pull": (
        "pull_bytes_per_s",
        "raw_read_bytes_per_s",
        "copy_bytes_per_s",
        "last_byte_p50_s",
        "source_cpu_s_per_gb",
        "destination_cpu_s_per_gb",
        "checked_sampled_to_off",
        "checked_full_to_off",
        "checked_fresh_p50_s",
    ),
    "register": ("describe_s", "first_pull_s", "later_pull_s", "long_meanwhile_s"),
    "scheduler": ("step_alone_p99_s", "step_loaded_p99_s", "per_pull_s", "per_idle_step_s"),
    "queue": ("records_per_s", "wake_p50_s", "records_per_s_multiprocessing_queue"),
    "idle": ("helper_cpu_share", "helper_rss_bytes"),
    "scale": ("keys_64_p50_s", "blocks_1024_p50_s", "peers_4_p50_s", "pulls_8_p50_s"),
}


@pytest.mark.parametrize("benchmark", FIGURES)
def test_a_benchmark_reports_its_figures_and_leaves_nothing(benchmark: str, tmp_path: Path) -> None:
    before = Leftovers.now()
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    finished = _bench(benchmark, "--json", "--plot", str(tmp_path / "plot.png"), tmp=temporary)

    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)
    assert found["benchmark"] == benchmark
    assert found["parameters"]
    described = {"cpu", "cores", "memory_bytes", "kernel", "vllm", "nixl", "zeromq", "transport"}
    assert described <= set(found["machine"])
    for name, value in found["figures"].items():
        assert math.isfinite(value), name
    for name in FIGURES[benchmark]:
        assert found["figures"][name] > 0, name
    # With --json, people get the table on stderr.
    assert all(table["title"] in finished.stderr for table in found["tables"])
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert before.new() == []
    assert _workers() == []
    assert list(temporary.iterdir()) == []


def test_a_table_goes_to_stdout_and_progress_to_stderr() -> None:
    finished = _bench("queue")
    assert finished.returncode == 0, finished.stderr
    assert "Million records a second between two processes" in finished.stdout
    assert "mpkv ring" in finished.stdout
    assert "[   0 s] queue:" in finished.stderr


def test_all_benchmarks_make_one_report(tmp_path: Path) -> None:
    finished = run_mpkv("bench", "all", "queue", "--quick", "--output", str(tmp_path / "out"))
    assert finished.returncode == 0, finished.stderr
    report = (tmp_path / "out" / "report.md").read_text()
    assert "## queue" in report
    assert "![queue](queue.png)" in report
    assert json.loads((tmp_path / "out" / "queue.json").read_text())["benchmark"] == "queue"
    assert (tmp_path / "out" / "queue.png").exists()


def test_a_benchmark_that_fails_is_named_in_the_report(tmp_path: Path) -> None:
    with pytest.raises(HelperFailed, match="no result of: nonsense"):
        run_all(["nonsense"], tmp_path, quick=True, progress=lambda text: None)
    assert "**nonsense failed.**" in (tmp_path / "report.md").read_text()


def test_without_matplotlib_a_plot_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not here')\n")
    plot = tmp_path / "plot.png"
    finished = run_mpkv("bench", "queue", "--quick", "--plot", str(plot), env=_first(tmp_path))
    assert finished.returncode == 1
    assert "pip install 'mpkv[bench]'" in finished.stderr
    assert "queue:" not in finished.stderr
    assert not plot.exists()


def test_an_unknown_benchmark_is_refused() -> None:
    finished = run_mpkv("bench", "all", "nonsense")
    assert finished.returncode == 2
    assert "no benchmark 'nonsense'; there are lookup, pull" in finished.stderr


def _bench(
    benchmark: str, *options: str, tmp: Path | None = None
) -> subprocess.CompletedProcess[str]:
    env = {} if tmp is None else {"TMPDIR": str(tmp)}
    return run_mpkv("bench", benchmark, "--quick", *options, env=env)


def _first(folder: Path) -> dict[str, str]:
    """An environment in which Python looks for modules in `folder` first."""
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def _workers(within_s: float = 5.0) -> list[str]:
    """Worker processes of this test run that still live."""
    until = time.monotonic() + within_s
    while True:
        found = []
        for entry in os.listdir("/proc"):
            try:
                command = Path(f"/proc/{entry}/cmdline").read_text() if entry.isdigit() else ""
                ours = "mpkv_cli.bench" in command and (
                    MARK in Path(f"/proc/{entry}/environ").read_text()
                )
            except (OSError, UnicodeDecodeError):
                continue
            if ours:
                found.append(entry)
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.05)
