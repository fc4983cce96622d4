"""What a process uses: processor time to the nanosecond, memory apart from the shared tier."""

import time
from collections.abc import Iterable

import psutil

from mpkv.errors import ConfigRefused

_PROCESS_CLOCK = 2
# Beside what a benchmark asks for.
_SPARE = 1 << 30


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads of a process since its start, those that ended too."""
    # How Linux encodes the clock of another process.
    return time.clock_gettime((~pid << 3) | _PROCESS_CLOCK)


def total_cpu_seconds(pids: Iterable[int]) -> float:
    return sum(cpu_seconds(pid) for pid in pids)


def private_bytes(pid: int) -> int:
    """Resident memory without pages of shared memory: those are the tier, which all map."""
    fields = {}
    with open(f"/proc/{pid}/status") as file:
        for line in file:
            name, _, value = line.partition(":")
            fields[name] = value.split()
    return 1024 * sum(int(fields[name][0]) for name in ("RssAnon", "RssFile"))


def need_memory(needed: int, remedy: str) -> None:
    """Raises ConfigRefused, with `remedy`, if the machine does not have that much left."""
    available = psutil.virtual_memory().available
    if needed + _SPARE > available:
        raise ConfigRefused(
            f"this needs {needed / (1 << 30):.1f} GiB of memory, and {_SPARE >> 30} GiB to spare; "
            f"{available / (1 << 30):.1f} GiB are available. {remedy}"
        )
