"""Segments of killed processes are removed, and nothing that anybody uses."""

import ctypes
import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpkv.processes.orphans import SHARED_MEMORY, remove_orphans


@pytest.fixture
def folder() -> Iterator[Path]:
    """Leases are a matter of the file system: this has to be the real one."""
    path = SHARED_MEMORY / f"mpkv-test-{os.getpid()}"
    path.mkdir()
    yield path
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


def segment(folder: Path, name: str = "ucx_shm_posix_16edf78a") -> Path:
    path = folder / name
    path.write_bytes(b"x" * 8192)
    return path


def test_what_nobody_uses_goes_and_only_of_ucx(folder: Path) -> None:
    orphan, other = segment(folder), segment(folder, "another_16edf78a")
    (folder / "ucx_shm_posix_link").symlink_to(other)
    assert remove_orphans(folder) == [orphan]
    assert sorted(path.name for path in folder.iterdir()) == [other.name, "ucx_shm_posix_link"]


def test_what_is_open_stays(folder: Path) -> None:
    used = segment(folder)
    with used.open("rb"):
        assert remove_orphans(folder) == []
    assert remove_orphans(folder) == [used]


def test_what_is_mapped_and_not_open_stays(folder: Path) -> None:
    used = segment(folder)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    fd = os.open(used, os.O_RDWR)
    address = libc.mmap(None, 8192, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    os.close(fd)
    try:
        assert remove_orphans(folder) == []
    finally:
        libc.munmap(address, 8192)
    assert remove_orphans(folder) == [used]


def test_who_opens_it_meanwhile_ends_nobody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another engine's does that removes orphans too."""
    orphan = segment(folder)
    unlink = Path.unlink
    refused = []

    def opened_before(path: Path) -> None:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        except BlockingIOError as error:
            refused.append(error)
        unlink(path)

    monkeypatch.setattr(Path, "unlink", opened_before)
    assert remove_orphans(folder) == [orphan]
    assert len(refused) == 1


def test_without_a_free_descriptor_nothing_is_raised(folder: Path) -> None:
    """Whoever removes orphans has the slots of a dead helper to give back next."""
    orphan = segment(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        removed = remove_orphans(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert removed == []
    assert remove_orphans(folder) == [orphan]
