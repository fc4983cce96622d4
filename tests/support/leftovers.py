"""What a test could leave on the machine: files in /dev/shm and helper processes."""

import contextlib
import os
import time
import uuid
from dataclasses import dataclass

import psutil

from mpkv_cli.demo.sessions import shared_memory_of

# Inherited by all that this test run starts, so that it sees nobody else's processes.
MARK = f"MPKV_TEST_RUN={uuid.uuid4().hex}"
os.environ.update([MARK.split("=")])


@dataclass(frozen=True)
class Leftovers:
    shared: frozenset[str]
    helpers: frozenset[int]

    @classmethod
    def now(cls) -> "Leftovers":
        return cls(_shared_files(), _helpers())

    def new(self, within_s: float = 5.0) -> list[str]:
        """What is there now and was not before; helpers get `within_s` to leave."""
        until = time.monotonic() + within_s
        while True:
            found = [f"/dev/shm/{name}" for name in sorted(_shared_files() - self.shared)]
            found += [f"process {pid}" for pid in sorted(_helpers() - self.helpers)]
            if not found or time.monotonic() > until:
                return found
            time.sleep(0.05)


def _shared_files() -> frozenset[str]:
    prefixes = ("mpkv", "vllm_offload", "psm_", "sem.mp-")
    found = [name for name in os.listdir("/dev/shm") if name.startswith(prefixes)]
    # Somebody else on this machine may be at work.
    others = shared_memory_of([p for p in psutil.process_iter() if not _is_ours(p.pid)])
    return frozenset(name for name in found if _inode(name) not in others)


def _inode(name: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return os.stat(f"/dev/shm/{name}").st_ino
    return 0


def _is_ours(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/environ") as file:
            return MARK in file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def _helpers() -> frozenset[int]:
    found = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/cmdline") as file:
                command = file.read()
            with open(f"/proc/{entry}/stat") as file:
                state = file.read().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        helper = "mpkv.control" in command or "mpkv.registration" in command
        if helper and state != "Z" and _is_ours(int(entry)):
            found.add(int(entry))
    return frozenset(found)
