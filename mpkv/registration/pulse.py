"""Shows once a beat that this process can do its work, and ends it when it leaks.

An initiator looks at the control plane's beats as well. What it owes while it does not beat,
because a transport copies a large READ inside `post`, has bounds of its own in the control
plane, which judges an initiator by its beats only while that owes nothing.
"""

import contextlib
import logging
import resource
import signal
import time
from collections.abc import Callable

from mpkv.errors import HelperFailed
from mpkv.memory import Counters, Ledger
from mpkv.messages import Bounds
from mpkv.processes.health import Watch, pid_of, private_memory, short_of_descriptors

log = logging.getLogger("mpkv.registration")

# Each peer that an initiator forgets while it lives leaves a connection here until that
# initiator is replaced, which its control plane does after some hundred of them.
_DESCRIPTORS = 65_536


class ControlWatch:
    """An initiator's look at its control plane, which it ends when that hangs."""

    def __init__(self, ledger: Ledger, pidfd: int, bounds: Bounds) -> None:
        control = ledger.counters("control")
        self._watch = Watch(lambda: control.value("beats"), bounds)
        self._pidfd = pidfd
        self._counters = ledger.counters("initiator")

    def look(self, now: float) -> None:
        if not self._watch.look(now):
            return
        log.warning(
            "ending the control plane (pid %d), so that the helpers are replaced: %s",
            pid_of(self._pidfd),
            self._watch.verdict(),
        )
        self._counters.add("controls_hung")
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


class Pulse:
    """`progress` is called for every beat, which is missing if it does not return."""

    def __init__(
        self,
        progress: Callable[[], None],
        counters: Counters,
        bounds: Bounds,
        control: ControlWatch | None = None,
    ) -> None:
        self._progress = progress
        self._counters = counters
        self._bounds = bounds
        self._control = control
        self._due = 0.0

    def beat(self) -> float:
        """Beat if it is time; return the seconds until the next beat.

        Raises HelperFailed if this process has become too big.
        """
        now = time.monotonic()
        if now < self._due:
            return self._due - now
        self._due = now + self._bounds.beat_s
        self._progress()
        self._counters.add("beats")
        self._check_size()
        if self._control is not None:
            self._control.look(now)
        return self._bounds.beat_s

    def _check_size(self) -> None:
        used, bound = private_memory(), self._bounds.registration_memory
        if used > bound:
            raise HelperFailed(
                f"it leaks: {used >> 10} KiB of memory are its own, expected at most "
                f"{bound >> 10} KiB; another process takes over"
            )
        if short_of_descriptors():
            raise HelperFailed(
                "it leaks: most of the descriptors that it may have are in use, see `ulimit -n`; "
                "another process takes over"
            )


def raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _DESCRIPTORS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(_DESCRIPTORS, hard), hard))
