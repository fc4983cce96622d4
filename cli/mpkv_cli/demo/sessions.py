"""The processes of a session, and the shared memory that they leave when killed."""

import contextlib
import os
import re
from pathlib import Path

import psutil

from mpkv_cli.leftovers import SHARED_MEMORY


def members(sessions: set[int | None]) -> list[psutil.Process]:
    """The living processes of these sessions, whoever their parents are."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if os.getsid(pid) in sessions:
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found


def shared_memory_of(processes: list[psutil.Process]) -> set[int]:
    """The files of /dev/shm that the processes map, by inode: a semaphore's file has
    been renamed since it was mapped."""
    inodes: set[int] = set()
    for process in processes:
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            found = re.findall(rf" (\d+) +{SHARED_MEMORY}/", maps)
            inodes |= {int(inode) for inode in found}
    return inodes


def remove_shared_memory(inodes: set[int]) -> None:
    """Only killed processes leave these; an orderly end removes them itself."""
    for path in SHARED_MEMORY.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino in inodes:
                path.unlink()
