"""Starting the servers of a cluster file here, and leaving nothing behind of them."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import psutil

from mpkv.cluster.config import Cluster
from mpkv.cluster.sections import Node
from mpkv.errors import HelperFailed
from mpkv_cli.demo.client import Client, Source
from mpkv_cli.demo.sessions import members, remove_shared_memory, shared_memory_of
from mpkv_cli.serve import flag_value

POLL_S = 0.25
# vLLM ends within two or three seconds of SIGTERM; a hung one is killed after this.
TERMINATE_S = 7.0
TERMINATE_TRIES = 2
# Its engine and workers follow it.
FOLLOW_S = 5.0
KILL_S = 10.0
PROGRESS_S = 15.0


class Replica:
    """One node, started by `mpkv launch` in a session of its own, its output in `log`."""

    def __init__(self, cluster: Cluster, node: Node, log: Path) -> None:
        if not node.http_port:
            raise HelperFailed(f'{cluster.path}: [[node]] "{node.name}" needs http_port')
        host = flag_value((*cluster.vllm.args, *node.vllm_args), "--host") or "127.0.0.1"
        self.name = node.name
        self.log = log
        self.client = Client(host, node.http_port)
        self.as_source = Source(node.reached_at, node.port)
        self._config = cluster.path
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-m", "mpkv_cli.main", "launch", self._config]
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, "--node", self.name],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def require_alive(self) -> None:
        """Raises HelperFailed with the end of the log if the server has exited."""
        code = self._process.poll() if self._process else None
        if code is not None:
            raise HelperFailed(
                f"replica {self.name} exited with {code}; {self.log} ends:\n{self._log_tail()}"
            )

    def session(self) -> int | None:
        return self._process.pid if self._process else None

    def terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def ended(self) -> bool:
        """Also reaps the server's first process, which would stay a zombie otherwise."""
        return self._process is None or self._process.poll() is not None

    def _log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(f"  {line[:300]}" for line in lines[-15:])


def wait_healthy(
    replicas: Iterable[Replica], timeout_s: float, progress: Callable[[str], None]
) -> None:
    """Raises HelperFailed if a replica exits or is not ready in time."""
    waiting = list(replicas)
    started = told = time.monotonic()
    while waiting:
        for replica in list(waiting):
            replica.require_alive()
            if replica.client.healthy():
                waiting.remove(replica)
                progress(f"replica {replica.name} is ready")
        now = time.monotonic()
        names = " and ".join(replica.name for replica in waiting)
        if waiting and now - started > timeout_s:
            logs = ", ".join(str(replica.log) for replica in waiting)
            raise HelperFailed(f"{names} not ready after {timeout_s:.0f} s; see {logs}")
        if waiting and now - told > PROGRESS_S:
            told = now
            progress(f"still loading vLLM in {names}")
        time.sleep(POLL_S)


def stop_all(replicas: Sequence[Replica]) -> None:
    """End every process of the replicas and remove what they leave in shared memory."""
    started = [replica.session() for replica in replicas]
    sessions = {session for session in started if session is not None}
    used: set[int] = set()

    def wait(timeout_s: float, over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + timeout_s
        while not over() and time.monotonic() < deadline:
            used.update(shared_memory_of(members(sessions)))
            time.sleep(POLL_S)

    def all_ended() -> bool:
        return all(replica.ended() for replica in replicas)

    # vLLM misses a SIGTERM that comes in the moment when its start is complete.
    for _ in range(TERMINATE_TRIES):
        for replica in replicas:
            replica.terminate()
        wait(TERMINATE_S, all_ended)
    wait(FOLLOW_S, lambda: not members(sessions))
    left = members(sessions)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, KILL_S)
    wait(KILL_S, all_ended)
    remove_shared_memory(used)


@contextlib.contextmanager
def stopped_at_exit(replicas: Sequence[Replica], progress: Callable[[str], None]) -> Iterator[None]:
    """Stop the servers however the block ends; a second Ctrl-C does not interrupt that."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in signals}
    try:
        yield
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        progress("stopping the replicas")
        stop_all(replicas)
        for number, handler in before.items():
            signal.signal(number, handler)
