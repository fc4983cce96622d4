"""What a run may leave on the machine, or let grow in its processes."""

import os
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.orders import Settled

# Descriptors of connections that peers have ended and that nobody has looked at since.
SLACK_FDS = 6
SLACK_THREADS = 1


@dataclass(frozen=True)
class Machine:
    """Shared memory: mpkv has no named files, UCX makes System V segments or files."""

    files: frozenset[str]
    segments: frozenset[str]

    @classmethod
    def now(cls) -> "Machine":
        return cls(_files(), _abandoned_segments())

    def new(self) -> list[str]:
        found = [f"/dev/shm/{name}" for name in sorted(_files() - self.files)]
        return found + [f"segment {id_}" for id_ in sorted(_abandoned_segments() - self.segments)]


def more_than(baseline: dict[str, Settled], after: dict[str, Settled]) -> list[str]:
    """Where descriptors or threads have grown, against the most of their kind at the start."""
    found = []
    for what, slack in (("fds", SLACK_FDS), ("threads", SLACK_THREADS)):
        most: dict[str, int] = {}
        for report in baseline.values():
            for role, count in getattr(report, what).items():
                most[role] = max(most.get(role, 0), count)
        for engine, report in after.items():
            for role, count in getattr(report, what).items():
                if count > most.get(role, count) + slack:
                    found.append(f"{engine}'s {role} has {count} {what}, had {most[role]}")
    return found


def _files() -> frozenset[str]:
    return frozenset(name for name in os.listdir("/dev/shm") if name.startswith(("mpkv", "ucx")))


def _abandoned_segments() -> frozenset[str]:
    """Segments of ended processes to which nobody is attached."""
    table = Path("/proc/sysvipc/shm").read_text().splitlines()
    columns = table[0].split()
    id_, creator, attached = (columns.index(name) for name in ("shmid", "cpid", "nattch"))
    rows = [line.split() for line in table[1:]]
    return frozenset(
        row[id_]
        for row in rows
        if row[attached] == "0" and not os.path.exists(f"/proc/{row[creator]}")
    )
