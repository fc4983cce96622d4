"""How a helper process stands among the processes of a machine: its name and its priority."""

import contextlib
import os
import time
from pathlib import Path

# The kernel keeps no more of a name.
LONGEST_NAME = 15
# A helper is idle but for moments, and somebody's request waits for each of them; the
# engines beside it may spin on every core.
NICENESS = -10
_AUTOGROUP_TRIES = 10
_AUTOGROUP_PAUSE_S = 0.05


def show_as(role: str) -> None:
    """Let `ps` and `top` tell the helpers of an engine apart: all are the same interpreter.

    To be called before threads start: they inherit it. Where /proc is read-only nothing changes.
    """
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(f"mpkv-{role}"[:LONGEST_NAME])


def go_first() -> None:
    """Ask to run before ordinary processes; without the right to, nothing changes.

    Linux may share the CPU out by sessions first, and a nice value counts only within one
    (autogroup, see sched(7)): a helper in its engine's session would wait, for up to 100 ms,
    for the rest that another engine's session leaves to its own. So it leaves for a session
    that has the priority as well.

    To be called before threads start: they inherit it.
    """
    try:
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    except PermissionError:
        return
    with contextlib.suppress(OSError):
        os.setsid()
        _set_autogroup()


def _set_autogroup() -> None:
    for _ in range(_AUTOGROUP_TRIES):
        try:
            Path("/proc/self/autogroup").write_text(str(NICENESS))
            return
        except BlockingIOError:
            # The kernel takes one such wish in 100 ms, of all processes together.
            time.sleep(_AUTOGROUP_PAUSE_S)
