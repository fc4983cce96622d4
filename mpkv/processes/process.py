"""How a helper process stands among the processes of a machine: its name and its priority."""

import contextlib
import os

# The kernel keeps no more of a name.
LONGEST_NAME = 15
# A helper is idle but for moments, and somebody's request waits for each of them; the
# engines beside it may spin on every core.
NICENESS = -10


def show_as(role: str) -> None:
    """Let `ps` and `top` tell the helpers of an engine apart: all are the same interpreter.

    To be called before threads start: they inherit it. Where /proc is read-only nothing changes.
    """
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(f"mpkv-{role}"[:LONGEST_NAME])


def go_first() -> None:
    """Ask to run before ordinary processes; without the right to, nothing changes.

    To be called before threads start: they inherit it.
    """
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
