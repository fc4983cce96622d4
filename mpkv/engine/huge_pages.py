"""Huge pages under the tier, where /dev/shm was mounted to give them.

Copies between processes pin every page they touch, so pages of 2 MiB are worth a good
part of a READ on one host; on the way to a GPU or a network card they save address
translations.
"""

import contextlib
import mmap
import os
import re

SHARED_MEMORY = "/dev/shm"
# Linux 5.14; Python names it since 3.14.
MADV_POPULATE_WRITE = 23


def create_with_huge_pages(path: str, size: int) -> str:
    """Make the file `path` in /dev/shm with huge pages under all of its `size` bytes.

    vLLM's region joins a file that is there already. Returns a sentence for the log: how
    much was got, or why nothing; in the latter case there is no file and vLLM makes its
    own, of ordinary pages.
    """
    if not mounted_for_huge_pages():
        return (
            f"ordinary pages: {SHARED_MEMORY} is mounted without huge pages, which READs on "
            f"one host gain from (`mount -o remount,huge=advise {SHARED_MEMORY}`)"
        )
    draft = f"{path}.{os.getpid()}"
    try:
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            got = _populate(fd, draft, size)
            # Under its name only when whole: who joins must not fault in small pages.
            os.link(draft, path)
        finally:
            os.close(fd)
            os.unlink(draft)
    except OSError as error:
        return f"ordinary pages: {error.strerror or error}"
    return f"huge pages under {got >> 20} of {size >> 20} MiB"


def mounted_for_huge_pages() -> bool:
    with open("/proc/self/mounts") as mounts:
        options = [line.split()[3] for line in mounts if line.split()[1] == SHARED_MEMORY]
    # The last mount is the one on top.
    return bool(options) and re.search(r"huge=(always|within_size|advise)", options[-1]) is not None


def _populate(fd: int, path: str, size: int) -> int:
    """Fault every page in; return the bytes that huge pages hold. Raises OSError."""
    free = os.statvfs(SHARED_MEMORY)
    if free.f_bavail * free.f_frsize < size:
        raise OSError(f"{SHARED_MEMORY} has not room enough")
    os.ftruncate(fd, size)
    with mmap.mmap(fd, size, mmap.MAP_SHARED) as mapping:
        mapping.madvise(mmap.MADV_HUGEPAGE)
        mapping.madvise(MADV_POPULATE_WRITE)
        return _mapped_huge(path)


def _mapped_huge(path: str) -> int:
    total = 0
    with contextlib.suppress(OSError), open("/proc/self/smaps") as smaps:
        ours = False
        for line in smaps:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                ours = line.rstrip().endswith(path)
            elif ours and line.startswith("ShmemPmdMapped:"):
                total += int(line.split()[1]) * 1024
    return total
