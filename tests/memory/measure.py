"""Figures of the shared memory core: `python -m tests.memory.measure`, on a quiet machine.

Each figure is the median of several runs, with the fastest and the slowest.
"""

import os
import random
import statistics
import time
from collections.abc import Callable
from functools import partial

from mpkv.memory import FILLING, Ledger, Ring
from tests.memory.peers import peer

BLOCKS = 19_599
KEYS = 2_048
RECORD = bytes(64)


def report(what: str, unit: str, figures: list[float]) -> None:
    middle, low, high = statistics.median(figures), min(figures), max(figures)
    print(f"{what:45} {middle:12,.1f} [{low:,.1f}-{high:,.1f}] {unit}")


def microseconds(call: Callable[[], object], runs: int = 51) -> list[float]:
    figures = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        figures.append((time.perf_counter() - start) * 1e6)
    return figures


def random_keys(count: int) -> list[bytes]:
    return [os.urandom(32) + bytes(4) for _ in range(count)]


def measure_ledger() -> None:
    engine = Ledger.create(BLOCKS, 36)
    control = Ledger.attach(engine.fd)
    known = random_keys(BLOCKS)
    allocated = engine.allocate(BLOCKS, FILLING)
    assert allocated is not None
    assert not any(engine.publish(allocated[0], b"".join(known), pin=False))
    wanted = b"".join(random.sample(known, KEYS))
    strange = b"".join(random_keys(KEYS))

    report("lookup_prefix, 2,048 keys", "us", microseconds(lambda: control.lookup_prefix(wanted)))
    report("contains_many, none there", "us", microseconds(lambda: control.contains_many(strange)))
    pinned: list[bytes] = []
    report("pin_many", "us", microseconds(lambda: pinned.append(control.pin_many(wanted))))
    held = iter(pinned)
    report("unpin_many", "us", microseconds(lambda: control.unpin_many(next(held))))

    report("touch_many", "us", microseconds(lambda: engine.touch_many(wanted)))
    engine.reclaim()

    taken: list[bytes] = []

    def allocate() -> None:
        allocated = engine.allocate(KEYS, FILLING)
        assert allocated is not None
        taken.append(allocated[0])

    allocations, publications = [], []
    for _ in range(25):
        fresh = b"".join(random_keys(KEYS))
        allocations += microseconds(allocate, 1)
        publications += microseconds(partial(engine.publish, taken[-1], fresh, False), 1)
    report("allocate 2,048, all by eviction", "us", allocations)
    report("publish 2,048", "us", publications)
    report("attach and close", "us", microseconds(lambda: Ledger.attach(engine.fd).close()))
    control.close()
    engine.close()


def measure_ring_alone() -> None:
    ring = Ring.create(1 << 20, "measure")
    producer, consumer = ring.producer(-1), ring.consumer(-1)
    count = 10_000
    rates = []
    for _ in range(25):
        start = time.perf_counter()
        for _ in range(count):
            producer.push(RECORD)
        for _ in range(count):
            consumer.pop()
        rates.append(count / (time.perf_counter() - start) / 1e6)
    report("push and pop of 64 bytes, one process", "million/s", rates)
    ring.close()


def measure_ring_between_processes() -> None:
    rates = []
    count = 500_000
    for _ in range(7):
        ring = Ring.create(1 << 20, "measure")
        wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        with peer("push", count, fds=(ring.fd, wake_fd)):
            consumer = ring.consumer(-1)
            while consumer.pop() is None:
                time.sleep(0.001)
            start = time.perf_counter()
            left = count - 1
            while left > 0:
                left -= consumer.pop() is not None
            rates.append(count / (time.perf_counter() - start) / 1e6)
        ring.close()
        os.close(wake_fd)
    report("the same, two processes", "million/s", rates)


def measure_wake_up() -> None:
    """The consumer sleeps in poll() and answers with the time at which it had the record."""
    there, back = Ring.create(4096, "there"), Ring.create(4096, "back")
    wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    with peer("stamp", 2_000, fds=(there.fd, wake_fd, back.fd)):
        producer, consumer = there.producer(wake_fd), back.consumer(-1)
        latencies = []
        for _ in range(2_000):
            time.sleep(0.0005)  # the other side is asleep by now
            start = time.monotonic_ns()
            producer.push(RECORD)
            while (stamp := consumer.pop()) is None:
                time.sleep(0.0001)
            latencies.append((int.from_bytes(stamp) - start) / 1e3)
    report("from push to the woken consumer's pop", "us", latencies)
    there.close()
    back.close()
    os.close(wake_fd)


if __name__ == "__main__":
    measure_ring_alone()
    measure_ring_between_processes()
    measure_wake_up()
    measure_ledger()
