"""Real vLLM servers for the end-to-end tests, started as a user starts them.

They compute in float32. What a token's numbers are depends on what is computed beside
them, by about 1e-5 of a logit there; in 16 bits it is enough to change tokens now and then.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from mpkv.cluster.config import load_cluster
from mpkv_cli.demo.sessions import members, remove_shared_memory, shared_memory_of
from mpkv_cli.serve import serve_command
from tests.support.standin import free_port

ROOT = Path(__file__).resolve().parents[2]
START_S = 300.0
STOP_S = 10.0
KILL_S = 30.0
JSON = {"Content-Type": "application/json"}

CLUSTER = """
[vllm]
model = "{model}"
args = [
    "--served-model-name", "tiny", "--host", "127.0.0.1", "--dtype", "float32",
    "--max-model-len", "5248", "--max-num-batched-tokens", "1024", "--max-num-seqs", "8",
    "--enforce-eager", "--worker-extension-cls", "tests.e2e.other_weights.OtherWeights",
]
[vllm.env]
VLLM_CPU_KVCACHE_SPACE = "1"
VLLM_SERVER_DEV_MODE = "1" # for /reset_prefix_cache and /collective_rpc
[tier]
size = "{tier}"
sync_load_budget = "{sync_load_budget}"
[pull]
deadline_s = 4.0
head_start = 0.125
"""


NODE = """
[[node]]
name = "{name}"
port = {port}
http_port = {http_port}
vllm_args = {args}
vllm_env = {{ VLLM_CPU_OMP_THREADS_BIND = "{core}" }}
"""


@dataclass(frozen=True)
class NodePlan:
    name: str
    port: int
    http_port: int


@dataclass(frozen=True)
class Answer:
    """`clearance`: by how much, in nats, each token was likelier than any other, at least."""

    tokens: list[int]
    prompt_tokens: int
    clearance: float


class Server:
    """One server and every process it starts; all of them end in `stop`."""

    def __init__(
        self, plan: NodePlan, argv: list[str], env: dict[str, str], log_path: Path
    ) -> None:
        self.plan = plan
        self.resets = 0
        self._log_path = log_path
        with log_path.open("ab") as log:
            # A session of its own: what is left of it can be found and ended.
            self._popen = subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._sessions = {self._popen.pid}

    def wait_healthy(self) -> None:
        until = time.monotonic() + START_S
        while True:
            assert self._popen.poll() is None, f"the server ended:\n{self.log()[-4000:]}"
            assert time.monotonic() < until, f"the server did not start:\n{self.log()[-4000:]}"
            try:
                status, _ = self._request("GET", "/health", None, 5.0)
            except OSError:
                status = 0
            if status == 200:
                return
            time.sleep(0.2)

    def complete(
        self,
        prompt: list[int],
        *,
        source: NodePlan | None = None,
        max_tokens: int = 8,
        timeout_s: float = 120.0,
    ) -> Answer:
        body = _body(prompt, source, max_tokens)
        body |= {"logprobs": 2, "return_tokens_as_token_ids": True}
        status, answer = self._request("POST", "/v1/completions", body, timeout_s)
        assert status == 200, answer
        parsed = json.loads(answer)
        (choice,) = parsed["choices"]
        likeliest = [sorted(found.values())[-2:] for found in choice["logprobs"]["top_logprobs"]]
        clearance = min(best - second for second, best in likeliest)
        return Answer(choice["token_ids"], parsed["usage"]["prompt_tokens"], clearance)

    def stream(
        self,
        prompt: list[int],
        source: NodePlan | None,
        max_tokens: int,
        *,
        tokens: int | None = None,
        timeout_s: float = 120.0,
    ) -> list[int]:
        """The tokens one by one; hang up once there are `tokens`. Raises TimeoutError when
        the next takes longer than `timeout_s`, and hangs up then."""
        body = _body(prompt, source, max_tokens) | {"stream": True}
        found: list[int] = []
        with self._connected(timeout_s) as connection:
            connection.request("POST", "/v1/completions", json.dumps(body), JSON)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[len(b"data: ") :])
                assert "choices" in event, event
                found += event["choices"][0]["token_ids"] if event["choices"] else []
                if tokens is not None and len(found) >= tokens:
                    break
        return found

    def reset_cache(self, *, running: bool) -> bool:
        """vLLM's own reset of all caches, the connector's too; False if it refused.

        Then the connector's has been reset nevertheless, unless running requests were to
        be preempted for it.
        """
        flags = f"reset_external=true&reset_running_requests={str(running).lower()}"
        status, answer = self._request("POST", f"/reset_prefix_cache?{flags}", None, 60.0)
        self.resets += status == 200
        return status == 200 and bool(json.loads(answer)["success"])

    def flip_weights(self) -> None:
        """Other weights, without a reset; the second time those of before."""
        status, answer = self._request("POST", "/collective_rpc", {"method": "flip"}, 60.0)
        assert status == 200, answer

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of `name` whose labels include `labels`."""
        return sum(value for found, value in self._samples(name) if labels.items() <= found.items())

    def metric_by(self, name: str, label: str) -> Counter[str]:
        """The samples of the counter `name`, added up by the values of `label`."""
        counted: Counter[str] = Counter()
        for labels, value in self._samples(name):
            counted[labels[label]] += int(value)
        return counted

    def _samples(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        _, text = self._request("GET", "/metrics", None, 10.0)
        for line in text.splitlines():
            match = re.match(r"([^{ ]+)(?:\{(.*)\})? (\S+)$", line)
            if match is not None and match[1] == name:
                yield dict(re.findall(r'(\w+)="([^"]*)"', match[2] or "")), float(match[3])

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def processes(self, pattern: str = "") -> list[int]:
        """Pids of this server's session whose command line contains `pattern`."""
        found = []
        for process in members(self._sessions):
            with contextlib.suppress(psutil.NoSuchProcess):
                if pattern in " ".join(process.cmdline()):
                    found.append(process.pid)
        return found

    def kill(self, pattern: str, number: signal.Signals = signal.SIGKILL) -> list[int]:
        """Signal the processes whose command line contains `pattern`; say which."""
        pids = self.processes(pattern)
        assert pids, f"no process of {self.plan.name} matches {pattern!r}"
        for pid in pids:
            os.kill(pid, number)
        return pids

    def stop(self) -> None:
        """SIGTERM as a user would, then the end of whatever is left."""
        shared = shared_memory_of(members(self._sessions))
        # vLLM misses one that comes in the moment when its start is complete.
        for _ in range(2):
            if self._popen.poll() is None:
                self._popen.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._popen.wait(STOP_S)
        self.kill_all()
        remove_shared_memory(shared)

    def kill_all(self) -> None:
        """kill -9 of every process at once; vLLM's own shared memory goes too."""
        processes = members(self._sessions)
        shared = shared_memory_of(processes)
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._popen.wait(KILL_S)
        psutil.wait_procs(processes, KILL_S)
        remove_shared_memory(shared)

    def _request(self, method: str, path: str, body: Any, timeout_s: float) -> tuple[int, str]:
        with self._connected(timeout_s) as connection:
            payload = json.dumps(body) if body is not None else None
            connection.request(method, path, payload, JSON)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def _connected(self, timeout_s: float) -> contextlib.closing[http.client.HTTPConnection]:
        return contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.plan.http_port, timeout=timeout_s)
        )


def _body(prompt: list[int], source: NodePlan | None, max_tokens: int) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    if source is not None:
        body["kv_transfer_params"] = {
            "remote_kv_source": {
                "kv_request_id": "test",
                "remote_host": "127.0.0.1",
                "remote_port": source.port,
            }
        }
    return body


class Fleet:
    """Two nodes, `a` and `b`, of one cluster file in `folder`.

    `gpu_blocks`: so few of 128 tokens on these nodes that a few requests preempt each
    other. `tier` is the size of each node's. `vllm` is where another than the installed
    one is imported from.
    """

    def __init__(
        self,
        folder: Path,
        model: Path,
        *,
        gpu_blocks: dict[str, int],
        tier: str,
        sync_load_budget: str = "",
        vllm: Path | None = None,
    ) -> None:
        self.a = NodePlan("a", free_port(), free_port())
        self.b = NodePlan("b", free_port(), free_port())
        self.trace_dir = folder / "trace"
        self._folder = folder
        self._file = folder / "cluster.toml"
        self._vllm = vllm
        text = CLUSTER.format(model=model, tier=tier, sync_load_budget=sync_load_budget)
        for core, plan in enumerate((self.a, self.b)):
            few = gpu_blocks.get(plan.name)
            text += NODE.format(
                name=plan.name,
                port=plan.port,
                http_port=plan.http_port,
                core=core % os.cpu_count(),
                args=json.dumps(["--num-gpu-blocks-override", str(few)] if few else []),
            )
        self._file.write_text(text)
        self.servers: list[Server] = []

    def launch(self, plan: NodePlan) -> Server:
        argv = [sys.executable, "-m", "mpkv_cli.main", "launch", str(self._file)]
        argv += ["--node", plan.name, "--trace-dir", str(self.trace_dir)]
        return self._start(plan, argv, dict(os.environ))

    def serve_without_mpkv(self, plan: NodePlan) -> Server:
        """The very same vLLM, with no connector."""
        cluster = load_cluster(str(self._file))
        command = serve_command(cluster, cluster.node(plan.name), ())
        argv = list(command.argv)
        at = argv.index("--kv-transfer-config")
        del argv[at : at + 2]
        return self._start(plan, argv, command.environment())

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def events(self, process: str, event: str) -> list[dict[str, Any]]:
        """Trace events of one process kind, such as `a-engine`, in time order."""
        found = []
        for path in self.trace_dir.glob(f"{process}-*.jsonl"):
            for line in path.read_text().splitlines():
                parsed = json.loads(line)
                if parsed["event"] == event:
                    found.append(parsed)
        return sorted(found, key=lambda line: line["at"])

    def _start(self, plan: NodePlan, argv: list[str], env: dict[str, str]) -> Server:
        # The tests are there for the workers too.
        paths = [str(ROOT), env.get("PYTHONPATH", "")]
        if self._vllm is not None:
            paths.insert(0, str(self._vllm))
        env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        server = Server(plan, argv, env, self._folder / f"{plan.name}.log")
        self.servers.append(server)
        return server
