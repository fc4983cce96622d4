"""Segments: sealed memfds, so that nothing is left in /dev/shm whoever dies."""

import fcntl
import mmap
import os


def create_segment(name: str, size: int) -> int:
    """Make a memfd of `size` zero bytes that can be neither shrunk nor grown.

    The descriptor is close-on-exec; `name` is what /proc shows. Its pages are reserved
    at once: a full machine is an OSError here and not a SIGBUS in some later step.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(fd)
        raise
    return fd


def map_segment(fd: int) -> mmap.mmap:
    """Map all of the segment, shared, for reading and writing."""
    return mmap.mmap(fd, os.fstat(fd).st_size)
