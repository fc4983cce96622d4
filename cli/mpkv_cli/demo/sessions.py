"""The processes of a server's session, and the shared memory that they leave when killed."""

import contextlib
import os
import re
from pathlib import Path

import psutil

from mpkv_cli.leftovers import SHARED_MEMORY


def members(sessions: set[int]) -> list[psutil.Process]:
    """The living processes of these sessions, whoever their parents are, and of sessions
    that their children have begun, as mpkv's helpers do: `sessions` gets those as well,
    since a child may outlive what it is known by."""
    living: list[tuple[psutil.Process, int, int]] = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                living.append((process, os.getsid(pid), process.ppid()))
    while True:
        found = [process for process, session, _ in living if session in sessions]
        parents = {process.pid for process in found}
        begun = {session for _, session, parent in living if parent in parents} - sessions
        if not begun:
            return found
        sessions |= begun


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
