"""The demo's parts, and that it leaves nothing behind however it ends.

A stand-in takes the place of vLLM: starting and stopping are what is tested here. The
demo with real engines is `make demo`.
"""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from mpkv.cluster.config import load_cluster
from mpkv.errors import HelperFailed
from mpkv_cli.demo import replica as replica_module
from mpkv_cli.demo.client import Metrics
from mpkv_cli.demo.measure import Sample, make_prompt, reusable_tokens
from mpkv_cli.demo.replica import Replica, stop_all, wait_healthy
from mpkv_cli.demo.report import Result
from mpkv_cli.tiny_model import make_tiny_model
from tests.cli.command import GOOD, REPOSITORY, free_port, stand_in_vllm, write_config

# Like vLLM it has a child in its session and a mapped file in /dev/shm; unlike vLLM
# neither process heeds SIGTERM. Semaphores get their names after they are mapped.
STUBBORN = """
import mmap, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
path = f"/dev/shm/mpkv-test-{os.getpid()}"
with open(path + ".draft", "wb+") as file:
    file.truncate(4096)
    region = mmap.mmap(file.fileno(), 4096)
os.link(path + ".draft", path)
os.unlink(path + ".draft")
child = os.fork()
if child:
    print("up", os.getpid(), child, flush=True)
time.sleep(60)
"""
MILD = """
import os, time
print("up", os.getpid(), os.getpid(), flush=True)
time.sleep(60)
"""
SAMPLE = Sample(
    lookup_delay_s=0.005,
    pull_s=0.004,
    pulled_bytes=32 << 20,
    reused_tokens=reusable_tokens(),
    ttft_shared_s=0.1,
    ttft_local_s=4.0,
    step_s=0.0,
    identical=True,
    misses=0,
)


def until(done: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def started_pids(log: Path) -> list[int]:
    until(lambda: log.exists() and "up " in log.read_text() and log.read_text()[-1] == "\n")
    line = next(line for line in log.read_text().splitlines() if line.startswith("up "))
    return [int(pid) for pid in line.split()[1:]]


def gone(pids: list[int]) -> bool:
    return not any(psutil.pid_exists(pid) for pid in pids)


@pytest.fixture
def one_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Replica]:
    def make(script: str) -> Replica:
        for name, value in stand_in_vllm(tmp_path, script).items():
            monkeypatch.setenv(name, value)
        text = GOOD.replace("7710", str(free_port())) + f"http_port = {free_port()}\n"
        cluster = load_cluster(write_config(tmp_path, text))
        return Replica(cluster, cluster.nodes[0], tmp_path / "a.log")

    return make


def test_stopping_ends_every_process_and_removes_shared_memory(
    one_replica: Callable[[str], Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "TERMINATE_S", 0.3)
    monkeypatch.setattr(replica_module, "FOLLOW_S", 0.3)
    replica = one_replica(STUBBORN)
    replica.start()
    pids = started_pids(replica.log)
    shared = Path(f"/dev/shm/mpkv-test-{pids[0]}")
    assert shared.exists()
    stop_all([replica])
    until(lambda: gone(pids))
    assert not shared.exists()


def test_stopping_what_never_started_is_fine(one_replica: Callable[[str], Replica]) -> None:
    stop_all([one_replica(MILD)])


def test_a_server_that_exits_is_told_with_the_end_of_its_log(
    one_replica: Callable[[str], Replica],
) -> None:
    replica = one_replica("import sys; sys.exit('no such device')")
    replica.start()
    with pytest.raises(HelperFailed, match=r"replica a exited with 1; .*a\.log ends:\n .*no such"):
        wait_healthy([replica], 20.0, lambda text: None)
    stop_all([replica])


def test_a_server_that_never_answers_is_given_up(one_replica: Callable[[str], Replica]) -> None:
    replica = one_replica(MILD)
    replica.start()
    pids = started_pids(replica.log)
    with pytest.raises(HelperFailed, match=r"a not ready after 0 s; see .*a\.log"):
        wait_healthy([replica], 0.3, lambda text: None)
    stop_all([replica])
    until(lambda: gone(pids))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    env = stand_in_vllm(tmp_path, MILD)
    nodes = "".join(
        f'[[node]]\nname = "{name}"\nport = {free_port()}\nhttp_port = {free_port()}\n'
        for name in "ab"
    )
    config = write_config(tmp_path, GOOD.split("[[node]]")[0] + nodes)
    demo = subprocess.Popen(
        [sys.executable, "-m", "mpkv_cli.main", "demo", config, "--output", str(tmp_path)],
        env={**os.environ, **env},
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        pids = started_pids(tmp_path / "demo-a.log") + started_pids(tmp_path / "demo-b.log")
        demo.send_signal(number)
        out, err = demo.communicate(timeout=30)
    finally:
        demo.kill()
    assert demo.returncode == 1
    assert "stopping the replicas" in out
    assert err.strip() == "Aborted!"
    assert gone(pids)
    assert not (tmp_path / "demo.json").exists()


def test_the_verdict_needs_full_reuse_and_equal_tokens() -> None:
    assert Result([SAMPLE], [SAMPLE]).failures() == []
    changes: list[tuple[dict[str, Any], str]] = [
        ({"reused_tokens": reusable_tokens() - 128}, "b reused 16,256 tokens of a"),
        ({"pulled_bytes": 0}, "b counted a pull from a that brought nothing"),
        ({"misses": 1}, "b counted a pull from a that brought nothing"),
        ({"identical": False}, "b gave other tokens with a's cache than without it"),
    ]
    for change, complaint in changes:
        worse = dataclasses.replace(SAMPLE, **change)
        for result in (Result([SAMPLE], [SAMPLE, worse]), Result([worse], [SAMPLE])):
            assert [failure.startswith(complaint) for failure in result.failures()] == [True]


def test_the_table_and_the_json_tell_medians() -> None:
    slow = dataclasses.replace(SAMPLE, lookup_delay_s=0.5, step_s=0.25)
    result = Result([SAMPLE, SAMPLE, slow], [slow])
    told = result.as_json()
    assert told["lookup_delay_idle_s"] == 0.005
    assert told["lookup_delay_busy_s"] == 0.5
    assert told["reused_tokens"] == 16384
    assert told["prompt_tokens"] == 16461
    assert told["outputs_identical"] is True
    lines = result.table().splitlines()
    assert " ".join(lines[1].split()) == "lookup delay on b 5.0 ms [5.0 - 500] 500 ms"
    assert lines[-1] == "outputs identical: yes"


def test_metrics_are_summed_by_name_and_label() -> None:
    page = (
        "# HELP x y\n"
        'x_total{engine="0",source="p2p"} 3.0\n'
        'x_total{engine="1",source="p2p"} 4.0\n'
        'x_total{engine="0",source="device"} 10.0\n'
        "x_total_created 1e9\n"
        "plain 2.0\n"
    )
    metrics = Metrics(page)
    assert metrics.total("x_total", 'source="p2p"') == 7.0
    assert metrics.total("x_total") == 17.0
    assert metrics.total("plain") == 2.0
    assert metrics.total("absent") == 0.0


def test_prompts_differ_from_their_first_block() -> None:
    assert make_prompt("x", 500) == make_prompt("x", 500)
    assert make_prompt("x", 500)[:128] != make_prompt("y", 500)[:128]


def test_the_model_is_the_same_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_tiny_model(tmp_path / name)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
