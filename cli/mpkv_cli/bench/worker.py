"""Worker processes: started, asked for things one at a time, and surely ended.

A worker is a module of `mpkv_cli.bench.workers`. It reads calls from its stdin, one JSON
object a line, and answers each with one line; it leaves when its stdin ends, so it does
not outlive the benchmark. What it and its helpers log goes to a file, of which the end is
shown when a call fails.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import mpkv
import mpkv_cli
from mpkv.errors import HelperFailed

CALL_S = 60.0
LEAVE_S = 20.0
LOG_TAIL = 2000


class Worker:
    """One worker process. Use as a context manager."""

    def __init__(self, module: str) -> None:
        self._module = module
        # Closed with the worker.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", f"mpkv_cli.bench.workers.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_environment(),
        )
        self._unread = b""

    @property
    def pid(self) -> int:
        return self._popen.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        with contextlib.suppress(OSError):
            self._popen.stdin.close()
        try:
            self._popen.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait(LEAVE_S)
        self._popen.stdout.close()
        self._log.close()

    def call(self, method: str, *, limit_s: float = CALL_S, **arguments: Any) -> Any:
        """Call and wait for the result. Raises HelperFailed."""
        self.begin(method, **arguments)
        return self.finish(limit_s)

    def begin(self, method: str, **arguments: Any) -> None:
        """Call without waiting; `finish` gets the result."""
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(json.dumps([method, arguments]).encode() + b"\n")
            self._popen.stdin.flush()
        except OSError as error:
            raise self._failure(str(error)) from None

    def finish(self, limit_s: float = CALL_S) -> Any:
        answer = json.loads(self._read_line(limit_s))
        if "error" in answer:
            raise self._failure(answer["error"])
        return answer["result"]

    def log(self) -> str:
        """What the worker, and all that it started, has written to stderr so far."""
        return os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0).decode(
            errors="replace"
        )

    def _read_line(self, limit_s: float) -> bytes:
        assert self._popen.stdout is not None
        fd = self._popen.stdout.fileno()
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        until = time.monotonic() + limit_s
        while b"\n" not in self._unread:
            if not poller.poll(max(until - time.monotonic(), 0) * 1000):
                raise self._failure(f"no answer within {limit_s:g} s")
            read = os.read(fd, 1 << 20)
            if not read:
                raise self._failure("the process is gone")
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _failure(self, detail: str) -> HelperFailed:
        tail = self.log()[-LOG_TAIL:].strip()
        return HelperFailed(
            f"the benchmark's {self._module} worker failed: {detail}"
            + (f"\nThe end of its log:\n{tail}" if tail else "")
        )


def serve(methods: Mapping[str, Callable[..., Any]]) -> None:
    """In the worker: answer calls until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w")
    # Libraries that print must not garble the answers.
    os.dup2(2, 1)
    for line in sys.stdin:
        method, arguments = json.loads(line)
        try:
            answer = {"result": methods[method](**arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        try:
            print(json.dumps(answer), file=answers, flush=True)
        except BrokenPipeError:
            return


def _environment() -> dict[str, str]:
    """The worker finds what this process has found."""
    folders = [
        os.path.dirname(os.path.dirname(os.path.abspath(str(package.__file__))))
        for package in (mpkv, mpkv_cli)
    ]
    inherited = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*folders, *([inherited] if inherited else [])]),
    }
