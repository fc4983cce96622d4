"""`mpkv render` prints a command that a shell, mpkv and vLLM all read as meant."""

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mpkv.cluster.config import load_cluster
from mpkv.cluster.settings import Integrity, decode_settings
from tests.cli.command import GOOD, REPOSITORY, run_mpkv, write_config

SHIPPED = [
    ("configs/local.toml", "a"),
    ("configs/local.toml", "b"),
    ("configs/two-node-h200.toml", "prefill-0"),
    ("configs/two-node-h200.toml", "prefill-1"),
]


def rendered(config: str, *args: str) -> list[str]:
    done = run_mpkv("render", config, *args)
    assert done.returncode == 0, done.stderr
    return shlex.split(done.stdout.replace("\\\n", ""))


def transfer_config(words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(words[words.index("--kv-transfer-config") + 1])
    return found


@pytest.mark.parametrize(("config", "node"), SHIPPED)
def test_shipped_files_round_trip(config: str, node: str) -> None:
    from vllm.config import KVTransferConfig

    words = rendered(config, "--node", node)
    transfer = transfer_config(words)
    cluster = load_cluster(str(REPOSITORY / config))
    for_vllm = KVTransferConfig(**transfer)
    assert for_vllm.is_kv_transfer_instance
    assert for_vllm.is_kv_producer
    assert for_vllm.is_kv_consumer
    assert for_vllm.kv_connector_module_path == "mpkv.engine.connector"
    extra = for_vllm.kv_connector_extra_config
    assert extra["cpu_bytes_to_use"] == cluster.tier.size_bytes
    assert decode_settings(extra["mpkv"]) == cluster.engine_settings(cluster.node(node))


def test_the_big_cluster_runs_eight_ranks_with_64_gib_each() -> None:
    words = rendered("configs/two-node-h200.toml", "--node", "prefill-0")
    assert words[words.index("--data-parallel-size") + 1] == "8"
    transfer = transfer_config(words)
    assert transfer["kv_connector_extra_config"]["cpu_bytes_to_use"] == 64 << 30
    assert transfer["kv_connector_extra_config"]["mpkv"]["peers"] == [
        {"name": "prefill-1", "host": "10.0.0.11", "port": 7710, "ranks": 8}
    ]


def test_vllm_is_told_how_much_to_load_within_a_step(tmp_path: Path) -> None:
    text = GOOD.replace("[tier]", '[tier]\nsync_load_budget = "64MiB"')
    extra = transfer_config(rendered(write_config(tmp_path, text)))["kv_connector_extra_config"]
    # By the name that vLLM 0.33 looks for.
    assert extra["sync_load_budget_bytes"] == 64 << 20


def test_every_node_is_told_what_to_check(tmp_path: Path) -> None:
    config = write_config(tmp_path, GOOD.replace("[tier]", '[pull]\nintegrity = "full"\n[tier]'))
    raw = transfer_config(rendered(config))["kv_connector_extra_config"]["mpkv"]
    assert raw["integrity"] == "full"
    assert decode_settings(raw).integrity is Integrity.FULL


def test_the_shell_reads_awkward_arguments_unchanged(tmp_path: Path) -> None:
    awkward = "a 'quoted' $HOME \"thing\"; \\ \n*"
    config = write_config(tmp_path, GOOD)
    text = run_mpkv("render", config, "--", "--served-model-name", awkward).stdout
    # The program is replaced by one that prints its arguments; the rest is what was rendered.
    printing = text.replace("-P -m vllm.entrypoints.cli.main", "-m tests.cli.print_arguments", 1)
    done = subprocess.run(
        ["sh", "-c", printing], capture_output=True, text=True, timeout=30, cwd=REPOSITORY
    )
    told = json.loads(done.stdout)
    assert told["argv"][-2:] == ["--served-model-name", awkward]
    assert told["argv"][:2] == ["serve", "some/model"]
    assert told["hash_seed"] == "0"


def test_traces_go_where_asked(tmp_path: Path) -> None:
    config = write_config(tmp_path, GOOD)
    words = rendered(config, "--trace-dir", "traces")
    settings = transfer_config(words)["kv_connector_extra_config"]["mpkv"]
    assert settings["trace_dir"] == str(REPOSITORY / "traces")


def test_a_revision_reaches_vllm_and_the_peers(tmp_path: Path) -> None:
    config = write_config(tmp_path, GOOD.replace("[tier]", 'revision = "abc"\n[tier]'))
    words = rendered(config)
    assert words[words.index("--revision") + 1] == "abc"
    assert transfer_config(words)["kv_connector_extra_config"]["mpkv"]["revision"] == "abc"


def test_a_content_reaches_the_peers(tmp_path: Path) -> None:
    config = write_config(tmp_path, GOOD + '[cluster]\ncontent = "run-17"\n')
    assert transfer_config(rendered(config))["kv_connector_extra_config"]["mpkv"]["content"] == (
        "run-17"
    )


def test_a_folder_named_mpkv_does_not_hide_the_package(tmp_path: Path) -> None:
    (tmp_path / "mpkv").mkdir()
    words = rendered(SHIPPED[0][0], "--node", "a")
    python = words[: words.index("-m")]
    # Assignments come first, as a shell takes them.
    done = subprocess.run(
        ["env", *python, "-c", "import mpkv; print(mpkv.__version__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_vllm_gives_its_engines_time_to_end_unless_told_otherwise(tmp_path: Path) -> None:
    flag = "--shutdown-timeout"
    one, many = (rendered(path, "--node", node) for path, node in (SHIPPED[0], SHIPPED[2]))
    assert (one[one.index(flag) + 1], many[many.index(flag) + 1]) == ("1", "3")
    own = write_config(tmp_path, GOOD.replace("[tier]", 'args = ["--shutdown_timeout=0"]\n[tier]'))
    assert [word for word in rendered(own) if "shutdown" in word] == ["--shutdown_timeout=0"]
