"""Shared memory of UCX that nobody uses any more.

UCX takes the name from a segment as soon as it has mapped it; a process that is killed before
leaves the name, and with it the memory, until somebody removes it.
"""

import contextlib
import fcntl
import os
import signal
import stat
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
_PATTERN = "ucx_shm_posix_*"


def remove_orphans(directory: Path = SHARED_MEMORY) -> list[Path]:
    """Remove this user's segments that no process has open or mapped; return which.

    Never raises: what cannot be looked at now, as without a free descriptor, stays.
    """
    try:
        found = list(directory.glob(_PATTERN))
    except OSError:
        return []
    return [path for path in found if _remove_if_orphaned(path)]


def _remove_if_orphaned(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:  # gone meanwhile, a link, or another user's
        return False
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return False
        # Whoever opens the file while we have the lease makes the kernel signal us: by
        # something that is ignored, since the usual SIGIO ends a process.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        # Granted only for a file that nobody else has open or mapped.
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        path.unlink()
        return True
    except OSError:  # in use, gone meanwhile, or this kernel grants no leases there
        return False
    finally:
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        os.close(fd)
