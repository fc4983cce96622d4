"""Beats, and the looks at the target and at the initiator, which end when they hang.

An initiator is judged by its beats only while it owes nothing: registering a peer and READing
have bounds of their own (REGISTER_S; a pull's deadline and GRACE_S), and one READ may take its
transport longer than a hang takes to be told.
"""

import contextlib
import logging
import signal

from mpkv.control.destination.client import Destination
from mpkv.errors import HelperFailed
from mpkv.memory import Ledger
from mpkv.messages import ControlStart
from mpkv.processes.health import Watch, pid_of, private_memory

log = logging.getLogger("mpkv.control")


class Health:
    """What the control plane does once a beat."""

    def __init__(self, start: ControlStart, ledger: Ledger, destination: Destination) -> None:
        self._bounds = start.bounds
        self._target_pidfd = start.target_pidfd
        self._counters = ledger.counters("control")
        self._destination = destination
        self._target_counters = ledger.counters("target")
        self._initiator_counters = ledger.counters("initiator")
        self._target = Watch(lambda: self._target_counters.value("beats"), self._bounds)
        self._initiator: Watch | None = None
        self._oversized = 0
        self._due = 0.0

    def initiator_up(self) -> None:
        """A new initiator begins to beat."""
        self._initiator = Watch(lambda: self._initiator_counters.value("beats"), self._bounds)

    def tick(self, now: float) -> float:
        """Beat and look, if it is time; return when to call again at the latest.

        Raises HelperFailed if this process has become too big.
        """
        if now >= self._due:
            self._due = now + self._bounds.beat_s
            self._counters.add("beats")
            self._check_size()
            self._look_at_target(now)
            self._look_at_initiator(now)
        return self._due

    def _check_size(self) -> None:
        """What peers make this process use is gone soon after their connections were dropped,
        so what stays is a leak, and would keep everybody's connections down."""
        used, bound = private_memory(), self._bounds.control_memory
        self._oversized = self._oversized + 1 if used > bound else 0
        if self._oversized >= self._bounds.looks:
            raise HelperFailed(
                f"it leaks: {used >> 10} KiB of memory are its own, expected at most "
                f"{bound >> 10} KiB for long; another process takes over"
            )

    def _look_at_target(self, now: float) -> None:
        if not self._target.look(now):
            return
        log.warning(
            "ending the target (pid %d), so that the helpers are replaced: %s",
            pid_of(self._target_pidfd),
            self._target.verdict(),
        )
        self._counters.add("targets_hung")
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._target_pidfd, signal.SIGKILL)

    def _look_at_initiator(self, now: float) -> None:
        initiators, pulls = self._destination.initiators, self._destination.pulls
        if initiators.adding or len(pulls) or pulls.reads.quarantined:
            return
        if self._initiator is not None and initiators.alive and self._initiator.look(now):
            initiators.hangs(self._initiator.verdict(), now)
        else:
            initiators.renew(now)
