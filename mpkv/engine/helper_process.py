"""Starting one helper process and knowing for certain when it is gone."""

import contextlib
import os
import select
import signal
import sys

import msgspec

import mpkv
from mpkv.memory._native import spawn

# SIGKILL is certain; the wait covers tearing down a large mapping.
REAP_S = 10.0


class HelperProcess:
    """A running `python -m <module>`, known by pidfd.

    The kernel kills it when the thread ends that has started it, so also with the engine,
    and also if it is stopped.
    """

    def __init__(self, module: str, start: msgspec.Struct, fds: list[int]) -> None:
        """Spawn the helper with `start` readable at offset 0 of an inherited memfd.

        `fds` are inherited under their own numbers. Raises OSError if the process
        cannot be made.
        """
        self.module = module
        start_fd = os.memfd_create("mpkv-start", os.MFD_CLOEXEC)
        null_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        # -P: where vLLM was started is no place to import from.
        argv = [sys.executable, "-P", "-m", module, "--start-fd", str(start_fd)]
        try:
            os.write(start_fd, msgspec.msgpack.encode(start))
            self.pid = spawn(
                [os.fsencode(part) for part in argv],
                [os.fsencode(f"{name}={value}") for name, value in _helper_environment().items()],
                [start_fd, *fds],
                null_fd,
            )
        finally:
            os.close(start_fd)
            os.close(null_fd)
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except OSError:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise

    def alive(self) -> bool:
        return not _readable(self.pidfd, 0.0)

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def reap(self) -> int:
        """Kill the process if it still runs, wait for its end, return its exit code.

        Only after this may anything that the process could write be used again.
        Raises TimeoutError if the kernel does not end it in `REAP_S`.
        """
        self.signal(signal.SIGKILL)
        if not _readable(self.pidfd, REAP_S):
            raise TimeoutError(f"process {self.pid} does not end")
        # Somebody else in the engine's process may have taken what it left.
        status = 0
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        return os.waitstatus_to_exitcode(status)


def _readable(fd: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def _helper_environment() -> dict[str, str]:
    source = os.path.dirname(os.path.dirname(os.path.abspath(mpkv.__file__)))
    inherited = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        # Helpers touch host memory only; a CUDA context would cost each GPU memory.
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": source + (os.pathsep + inherited if inherited else ""),
    }
