"""Files in shared memory that engines killed in their first seconds have left.

An engine's tier has a name in /dev/shm only until all its processes have mapped it.
Its worker holds a shared lock on the file while it lives.
"""

import fcntl
import logging
import os
import stat
import time
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
_PATTERN = "vllm_offload_mpkv-*.mmap"
# A worker that has just created the file may not have locked it yet.
_YOUNG_S = 60.0

log = logging.getLogger("mpkv.launch")


def remove_stale_regions(
    directory: Path = SHARED_MEMORY, pattern: str = _PATTERN, older_than_s: float = _YOUNG_S
) -> list[Path]:
    """Remove this user's regions that no process uses any more, and say so."""
    removed = []
    for path in sorted(directory.glob(pattern)):
        size = _remove_if_stale(path, older_than_s)
        if size is not None:
            log.info("removed %s (%d bytes), left by an engine that was killed", path, size)
            removed.append(path)
    return removed


def _remove_if_stale(path: Path, older_than_s: float) -> int | None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:  # gone meanwhile, a link, or another user's
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return None
        if time.time() - status.st_mtime < older_than_s:
            return None
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
        return status.st_size
    except OSError:  # in use, or gone meanwhile
        return None
    finally:
        os.close(fd)
