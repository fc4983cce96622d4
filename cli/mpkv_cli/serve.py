"""The `vllm serve` command of one node: its arguments and its environment."""

import json
import os
import secrets
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from mpkv.cluster.config import Cluster
from mpkv.cluster.sections import Node
from mpkv.errors import ConfigRefused
from mpkv_cli.vllm_dist import metadata_path

# What mpkv passes by itself, and where the user sets it instead.
_OWN_FLAGS = {
    "--kv-transfer-config": "mpkv writes it from the cluster file",
    "--prefix-caching-hash-algo": "set hash_algorithm in [cluster] instead",
    "--data-parallel-size": "set data_parallel_size of the node instead",
    "-dp": "set data_parallel_size of the node instead",
    "--port": "set http_port of the node instead",
    "--revision": "set revision in [vllm] instead",
    "--model": "set model in [vllm] instead",
}

SHUTDOWN_TIMEOUT = "--shutdown-timeout"
# vLLM's own default of 0 kills the engine, and what it has started, as soon as it is told to end.
SHUTDOWN_TIMEOUT_S = 1
# Of several ranks the API servers end first, within the same time.
SHUTDOWN_TIMEOUT_OF_RANKS_S = 3


@dataclass(frozen=True)
class ServeCommand:
    """`env` is what the command needs beyond the environment it is started from."""

    argv: tuple[str, ...]
    env: dict[str, str]

    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.env}


def serve_command(
    cluster: Cluster, node: Node, extra_args: tuple[str, ...], trace_dir: str = ""
) -> ServeCommand:
    """Raises ConfigRefused when an argument repeats what mpkv sets."""
    _refuse_own_flags(f"{cluster.path}: [vllm] args", cluster.vllm.args)
    _refuse_own_flags(f'{cluster.path}: [[node]] "{node.name}" vllm_args', node.vllm_args)
    _refuse_own_flags("the arguments after --", extra_args)
    model = cluster.model()
    argv = [sys.executable, "-P", "-m", "vllm.entrypoints.cli.main", "serve", model]
    if cluster.vllm.revision and not Path(model).is_absolute():
        argv += ["--revision", cluster.vllm.revision]
    if node.http_port:
        argv += ["--port", str(node.http_port)]
    if node.data_parallel_size > 1:
        argv += ["--data-parallel-size", str(node.data_parallel_size)]
    argv += ["--prefix-caching-hash-algo", cluster.cluster.hash_algorithm]
    argv += ["--kv-transfer-config", json.dumps(kv_transfer_config(cluster, node, trace_dir))]
    given = [*cluster.vllm.args, *node.vllm_args, *extra_args]
    if flag_value(given, SHUTDOWN_TIMEOUT) is None:
        several = node.data_parallel_size > 1
        timeout_s = SHUTDOWN_TIMEOUT_OF_RANKS_S if several else SHUTDOWN_TIMEOUT_S
        argv += [SHUTDOWN_TIMEOUT, str(timeout_s)]
    argv += given
    return ServeCommand(tuple(argv), _environment(cluster, node))


def kv_transfer_config(cluster: Cluster, node: Node, trace_dir: str) -> dict[str, Any]:
    """What vLLM is told about mpkv. vLLM adds `_dp<rank>` to the engine's id itself."""
    settings = cluster.engine_settings(node, os.path.abspath(trace_dir) if trace_dir else "")
    return {
        "kv_connector": "MpkvConnector",
        "kv_connector_module_path": "mpkv.engine.connector",
        "kv_role": "kv_both",
        "engine_id": f"mpkv-{node.name}-{secrets.token_hex(4)}",
        "kv_connector_extra_config": {
            "spec_name": "MpkvSpec",
            "spec_module_path": "mpkv.engine.spec",
            "cpu_bytes_to_use": cluster.tier.size_bytes,
            "sync_load_budget_bytes": cluster.tier.sync_load_budget_bytes,
            "mpkv": msgspec.to_builtins(settings),
        },
    }


def flag_value(args: Iterable[str], flag: str) -> str | None:
    """The value that `args` give to `flag`; the last one counts, as it does for vLLM."""
    value = None
    previous = ""
    for arg in args:
        name, equals, after = arg.partition("=")
        if equals and _same_flag(name, flag):
            value = after
        elif _same_flag(previous, flag):
            value = arg
        previous = arg
    return value


def _environment(cluster: Cluster, node: Node) -> dict[str, str]:
    env = {**cluster.vllm.env, **node.vllm_env, "PYTHONHASHSEED": cluster.cluster.hash_seed}
    stub = metadata_path()
    if stub is not None:
        env["PYTHONPATH"] = _join_path(str(stub), {**os.environ, **env}.get("PYTHONPATH"))
    return env


def _join_path(first: str, rest: str | None) -> str:
    return f"{first}{os.pathsep}{rest}" if rest else first


def _same_flag(arg: str, flag: str) -> bool:
    """vLLM takes `--a_b`, and `--a-b.key` for one key of a JSON argument, for `--a-b`."""
    return arg.split(".", 1)[0].replace("_", "-") == flag


def _refuse_own_flags(source: str, args: Iterable[str]) -> None:
    for arg in args:
        for flag, remedy in _OWN_FLAGS.items():
            if _same_flag(arg.partition("=")[0], flag):
                raise ConfigRefused(f"{source}: {flag} is set by mpkv; remove it: {remedy}.")
