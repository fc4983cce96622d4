"""Starting one helper process and knowing for certain when it is gone."""

import contextlib
import os
import select
import signal
import subprocess
import sys

import msgspec

import mpkv

# A helper that got SIGTERM leaves at once; this only bounds one that hangs in a driver.
TERMINATE_S = 2.0
# SIGKILL is certain; the wait covers tearing down a large mapping.
REAP_S = 10.0
STDERR = 2


class HelperProcess:
    """A running `python -m <module>`, known by pidfd."""

    def __init__(self, module: str, start: msgspec.Struct, fds: list[int]) -> None:
        """Spawn the helper with `start` readable at offset 0 of an inherited memfd.

        `fds` are inherited under their own numbers. Raises OSError if the process
        cannot be made.
        """
        self.module = module
        start_fd = os.memfd_create("mpkv-start", os.MFD_CLOEXEC)
        try:
            os.write(start_fd, msgspec.msgpack.encode(start))
            self._popen = subprocess.Popen(
                # -P: where vLLM was started is no place to import from.
                [sys.executable, "-P", "-m", module, "--start-fd", str(start_fd)],
                stdin=subprocess.DEVNULL,
                # Whatever a library prints: the engine's own output is not for it.
                stdout=STDERR,
                pass_fds=[start_fd, *fds],
                env=_helper_environment(),
            )
        finally:
            os.close(start_fd)
        try:
            self.pidfd = os.pidfd_open(self._popen.pid)
        except OSError:
            self._popen.kill()
            self._popen.wait(REAP_S)
            raise

    @property
    def pid(self) -> int:
        return self._popen.pid

    def alive(self) -> bool:
        return not _readable(self.pidfd, 0.0)

    def wait(self, limit_s: float) -> None:
        """Give the process up to `limit_s` to end by itself."""
        _readable(self.pidfd, limit_s)

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def reap(self) -> int:
        """Kill the process if it still runs, wait for its end, return its exit code.

        Only after this may anything that the process could write be used again.
        Raises subprocess.TimeoutExpired if the kernel does not end it in `REAP_S`.
        """
        self.signal(signal.SIGKILL)
        code = self._popen.wait(REAP_S)
        os.close(self.pidfd)
        return code


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
