"""Two real vLLM servers on this machine, with mpkv's connector or with vLLM's own P2P tier.

They are started and ended as the demo's replicas are. All that differs between the two
systems is what vLLM is told in `--kv-transfer-config`.
"""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpkv.cluster.config import Cluster, load_cluster
from mpkv.cluster.sections import Node
from mpkv.errors import HelperFailed
from mpkv_cli.bench.standin import free_port
from mpkv_cli.demo.replica import Replica
from mpkv_cli.serve import ServeCommand, kv_transfer_config, serve_command
from mpkv_cli.tiny_model import TINY_MODEL, make_tiny_model

MPKV = "mpkv"

# The source's steps are as long as in the demo; the destination's are small, so that
# prefills saturate it for long.
SOURCE_STEP_TOKENS, DESTINATION_STEP_TOKENS = 2048, 512
TIER = "2GiB"
# Room for two of the measured prompts.
HEAD_START = 1 / 32

_CLUSTER = f"""
[vllm]
model = "{{model}}"
args = [
    "--served-model-name", "tiny-llama", "--host", "127.0.0.1", "--dtype", "bfloat16",
    "--max-model-len", "32768", "--max-num-seqs", "8", "--enforce-eager",
]
[vllm.env]
VLLM_CPU_KVCACHE_SPACE = "1"
VLLM_SERVER_DEV_MODE = "1"
[tier]
size = "{TIER}"
sync_load_budget = "{{sync_load_budget}}"
[pull]
head_start = {HEAD_START}
"""

_NODE = """
[[node]]
name = "{name}"
port = {port}
http_port = {http_port}
vllm_args = ["--max-num-batched-tokens", "{step_tokens}"]
vllm_env = {{ VLLM_CPU_OMP_THREADS_BIND = "{core}" }}
"""


@dataclass(frozen=True)
class Pair:
    """The source and the destination."""

    a: "Engine"
    b: "Engine"


class Engine(Replica):
    """One server. Its environment differs from what `mpkv launch` gives in nothing."""

    def __init__(self, cluster: Cluster, node: Node, system: str, log: Path, trace: str) -> None:
        super().__init__(cluster, node, log)
        self.command = _with_connector(
            serve_command(cluster, node, (), trace), connector(system, cluster, node, trace)
        )

    def start(self) -> None:
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                self.command.argv,
                env=self.command.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def flush_prefix_cache(self) -> None:
        """So that what is in the CPU tier must come from there."""
        if not self.client.flush_prefix_cache():
            raise HelperFailed(f"replica {self.name} did not empty its KV cache; see {self.log}")


def make_pair(system: str, output: Path, sync_load_budget: str, trace_dir: str) -> Pair:
    """Engines that are not started yet; logs, cluster file and model are under `output`."""
    output.mkdir(parents=True, exist_ok=True)
    model = (output / TINY_MODEL).resolve()
    make_tiny_model(model)
    file = output / f"e2e-{system}.toml"
    nodes = (("a", SOURCE_STEP_TOKENS), ("b", DESTINATION_STEP_TOKENS))
    file.write_text(
        _CLUSTER.format(model=model, sync_load_budget=sync_load_budget)
        + "".join(
            _NODE.format(
                name=name, port=free_port(), http_port=free_port(), step_tokens=tokens, core=core
            )
            for core, (name, tokens) in enumerate(nodes)
        )
    )
    cluster = load_cluster(str(file))
    trace = str(Path(trace_dir) / system) if trace_dir else ""
    a, b = (
        Engine(cluster, node, system, output / f"e2e-{system}-{node.name}.log", trace)
        for node in cluster.nodes
    )
    return Pair(a, b)


def connector(system: str, cluster: Cluster, node: Node, trace: str) -> dict[str, Any]:
    """The `--kv-transfer-config` of one node."""
    config = kv_transfer_config(cluster, node, os.path.abspath(trace) if trace else "")
    extra = config["kv_connector_extra_config"]
    if system == MPKV:
        extra |= {"spec_name": "CalmMpkvSpec", "spec_module_path": "mpkv_cli.bench.calm_mpkv"}
        return config
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": config["kv_role"],
        "engine_id": config["engine_id"],
        "kv_connector_extra_config": {
            "spec_name": "VllmP2pOnCpu",
            "spec_module_path": "mpkv_cli.bench.vllm_p2p",
            "cpu_bytes_to_use": extra["cpu_bytes_to_use"],
            "sync_load_budget_bytes": extra["sync_load_budget_bytes"],
            "secondary_tiers": [{"type": "p2p", "host": node.listen, "port": node.port}],
        },
    }


def _with_connector(command: ServeCommand, config: dict[str, Any]) -> ServeCommand:
    argv = list(command.argv)
    argv[argv.index("--kv-transfer-config") + 1] = json.dumps(config)
    return ServeCommand(tuple(argv), command.env)
