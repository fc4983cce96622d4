"""How helper processes know of each other and of themselves that they still do their work.

Each counts beats from its main loop into its page of the ledger, and looks at the beats of
another. A hang is told by how often the watcher has looked in vain, never by comparing clocks:
a pause of the machine stops both, and neither takes it for a hang of the other.
"""

import os
import resource
from collections.abc import Callable

from mpkv.messages import Bounds

_PAGE = resource.getpagesize()
_RESIDENT_FIELD, _SHARED_FIELD = 1, 2
# A watcher that misses more of its own looks than this was stopped itself.
_MISSED_LOOKS = 3
# Of the descriptors that the process may have.
_DESCRIPTORS_SHARE = 0.75


class Watch:
    """Looks at the beats of one life of one process; a successor needs a `Watch` of its own."""

    def __init__(self, beats: Callable[[], int], bounds: Bounds) -> None:
        self._beats = beats
        self._bounds = bounds
        self._seen = beats()
        self._started = False
        self._in_vain = 0
        self._looked_at = 0.0

    def look(self, now: float) -> bool:
        """Look once, `bounds.beat_s` after the last time; True if the process hangs."""
        missed = now - self._looked_at > _MISSED_LOOKS * self._bounds.beat_s
        self._looked_at = now
        beats = self._beats()
        if beats != self._seen:
            self._seen, self._started, self._in_vain = beats, True, 0
        elif missed:
            self._in_vain = 0
        else:
            self._in_vain += 1
        if self._in_vain < self.patience:
            return False
        # Who ends it gives it as long again to be gone.
        self._in_vain = 0
        return True

    @property
    def patience(self) -> int:
        """How many looks in vain make a hang: a start may take longer than a beat."""
        return self._bounds.looks if self._started else self._bounds.start_looks

    def verdict(self) -> str:
        """Why it counts as hanging, for the log."""
        what = "its beat has not changed" if self._started else "no beat of it was seen"
        return f"{what} in {self.patience} looks, {self._bounds.beat_s:g} s apart"


def pid_of(pidfd: int) -> int:
    """The process that `pidfd` stands for; -1 if it has been reaped."""
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        fields = dict(line.split(":", 1) for line in file)
    return int(fields["Pid"])


def private_memory() -> int:
    """Bytes of memory that are this process's alone: not the tier, which all map.

    The kernel keeps these figures; adding up a large tier's pages would take long.
    """
    with open("/proc/self/statm", "rb") as file:
        fields = file.read().split()
    return (int(fields[_RESIDENT_FIELD]) - int(fields[_SHARED_FIELD])) * _PAGE


def short_of_descriptors() -> bool:
    """Whether this process has most of the descriptors that it may have."""
    # The lowest free number: at least so many are in use.
    number = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.close(number)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return number > soft * _DESCRIPTORS_SHARE
