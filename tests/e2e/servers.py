"""Real vLLM servers for the end-to-end tests, started as a user starts them."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from mpkv.config import load_cluster
from mpkv_cli.demo.sessions import members, remove_shared_memory, shared_memory_of
from mpkv_cli.serve import serve_command
from tests.support.standin import free_port

START_S = 300.0
STOP_S = 10.0
KILL_S = 30.0

CLUSTER = """
[vllm]
model = "{model}"
args = [
    "--served-model-name", "tiny", "--host", "127.0.0.1", "--dtype", "bfloat16",
    "--max-model-len", "16384", "--max-num-batched-tokens", "1024", "--max-num-seqs", "8",
    "--enforce-eager",
]
[vllm.env]
VLLM_CPU_KVCACHE_SPACE = "1"
VLLM_SERVER_DEV_MODE = "1" # for /reset_prefix_cache
[tier]
size = "128MiB"
[pull]
deadline_s = 4.0
head_start = 0.0625
"""

# What the head start keeps in stock: that share of 128 MiB, in blocks of 256 KiB.
STOCK = 32

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
    tokens: list[int]
    prompt_tokens: int


class Server:
    """One server and every process it starts; all of them end in `stop`."""

    def __init__(
        self, plan: NodePlan, argv: list[str], env: dict[str, str], log_path: Path
    ) -> None:
        self.plan = plan
        self._log_path = log_path
        with log_path.open("ab") as log:
            # A session of its own: what is left of it can be found and ended by group.
            self._popen = subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def group(self) -> int:
        return self._popen.pid

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
        status, answer = self._request("POST", "/v1/completions", body, timeout_s)
        assert status == 200, answer
        parsed = json.loads(answer)
        return Answer(parsed["choices"][0]["token_ids"], parsed["usage"]["prompt_tokens"])

    def abandon(self, prompt: list[int], source: NodePlan, after_s: float) -> None:
        """Ask for an answer and hang up `after_s` later."""
        with contextlib.suppress(TimeoutError):
            self.complete(prompt, source=source, max_tokens=200, timeout_s=after_s)

    def reset_cache(self, *, running: bool) -> bool:
        """vLLM's own reset of all caches, the connector's too; False if it refused."""
        flags = f"reset_external=true&reset_running_requests={str(running).lower()}"
        status, answer = self._request("POST", f"/reset_prefix_cache?{flags}", None, 60.0)
        return status == 200 and bool(json.loads(answer)["success"])

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of `name` whose labels include `labels`."""
        _, text = self._request("GET", "/metrics", None, 10.0)
        total = 0.0
        for line in text.splitlines():
            match = re.match(r"([^{ ]+)(?:\{(.*)\})? (\S+)$", line)
            if match is None or match[1] != name:
                continue
            found = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
            if labels.items() <= found.items():
                total += float(match[3])
        return total

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def processes(self, pattern: str = "") -> list[int]:
        """Pids of this server's session whose command line contains `pattern`."""
        found = []
        for process in members({self.group}):
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
        shared = shared_memory_of(members({self.group}))
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
        processes = members({self.group})
        shared = shared_memory_of(processes)
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._popen.wait(KILL_S)
        psutil.wait_procs(processes, KILL_S)
        remove_shared_memory(shared)

    def _request(self, method: str, path: str, body: Any, timeout_s: float) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.plan.http_port, timeout=timeout_s)
        try:
            payload = json.dumps(body) if body is not None else None
            connection.request(method, path, payload, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


class Fleet:
    """Two nodes, `a` and `b`, of one cluster file in `folder`."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.a = NodePlan("a", free_port(), free_port())
        self.b = NodePlan("b", free_port(), free_port())
        self.trace_dir = folder / "trace"
        self._folder = folder
        self._file = folder / "cluster.toml"
        text = CLUSTER.format(model=model)
        for core, plan in enumerate((self.a, self.b)):
            text += NODE.format(
                name=plan.name,
                port=plan.port,
                http_port=plan.http_port,
                core=core % os.cpu_count(),
                # Little enough on b that a few requests preempt each other.
                args=json.dumps(["--num-gpu-blocks-override", "160"] if plan is self.b else []),
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
        server = Server(plan, argv, env, self._folder / f"{plan.name}.log")
        self.servers.append(server)
        return server
