"""Where helper processes stand among the processes of a machine."""

import contextlib
import os

# A helper is idle but for moments, and somebody's request waits for each of them; the
# engines beside it may spin on every core.
NICENESS = -10


def go_first() -> None:
    """Ask to run before ordinary processes; without the right to, nothing changes.

    To be called before threads start: they inherit it.
    """
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
