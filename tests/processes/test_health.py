"""When a process counts as hanging, and what a process knows of its own size."""

import mmap
import os
import resource

from mpkv.messages import Bounds
from mpkv.processes.health import Watch, pid_of, private_memory, short_of_descriptors
from mpkv.registration.lifeline import GIL_GRACE_S, START_DEADLINE_S

BOUNDS = Bounds(beat_s=1.0, looks=3, start_looks=5)


class Beats:
    """The beats of a process and a watch on it; each look is a second after the last."""

    def __init__(self) -> None:
        self.count = 7  # of an earlier life
        self.now = 0.0
        self.watch = Watch(lambda: self.count, BOUNDS)

    def look(self, *, beats: bool, after_s: float = 1.0) -> bool:
        self.count += beats
        self.now += after_s
        return self.watch.look(self.now)


def test_a_process_hangs_after_looks_in_vain_in_a_row() -> None:
    beats = Beats()
    looks = [True, False, False, True, False, False, False, False, False, False]
    assert [beats.look(beats=beat) for beat in looks] == [False] * 6 + [True, False, False, True]
    assert beats.watch.verdict() == "its beat has not changed in 3 looks, 1 s apart"


def test_a_start_gets_more_patience() -> None:
    beats = Beats()
    assert [beats.look(beats=False) for _ in range(5)] == [False] * 4 + [True]
    assert beats.watch.verdict() == "no beat of it was seen in 5 looks, 1 s apart"


def test_a_watcher_that_was_stopped_itself_starts_anew() -> None:
    beats = Beats()
    beats.look(beats=True)
    assert not beats.look(beats=False)
    assert not beats.look(beats=False)
    # One look that is late counts; after a pause the other may not have run yet.
    assert not beats.look(beats=False, after_s=3600.0)
    assert [beats.look(beats=False, after_s=2.0) for _ in range(3)] == [False, False, True]


def test_a_pidfd_tells_its_process_until_that_is_reaped() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    pidfd = os.pidfd_open(child)
    assert pid_of(pidfd) == child
    os.waitpid(child, 0)
    assert pid_of(pidfd) == -1
    os.close(pidfd)


def test_memory_that_others_share_is_not_private() -> None:
    size = 64 << 20
    for flags, counts in ((mmap.MAP_SHARED, False), (mmap.MAP_PRIVATE, True)):
        before = private_memory()
        with mmap.mmap(-1, size, flags | mmap.MAP_ANONYMOUS) as memory:
            memory[:: mmap.PAGESIZE] = b"x" * (size // mmap.PAGESIZE)
            assert (private_memory() - before > size // 2) is counts


def test_the_last_quarter_of_the_descriptors_is_not_for_leaks() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert not short_of_descriptors()
    lowest = os.dup(0)
    os.close(lowest)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, hard))
        assert short_of_descriptors()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_start_ends_by_its_own_deadline_before_others_end_it() -> None:
    usual = Bounds()
    assert usual.start_looks * usual.beat_s > START_DEADLINE_S + GIL_GRACE_S
