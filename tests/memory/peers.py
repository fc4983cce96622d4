"""The other process of a test: `python -m tests.memory.peers ROLE ARGUMENT...`.

Each role works until it is killed, or until its work or its deadline is over; a wrong
observation ends it with a traceback. Descriptors are inherited under the same numbers.
"""

import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mpkv.memory import MISS_SLOT, Consumer, Ledger, Producer, Ring, map_segment

DEADLINE_S = 30.0
KEY_SIZE = 36
BLOCK_BYTES = 256
NOISE = random.Random(0).randbytes(1 << 16)


@contextmanager
def peer(role: str, *arguments: int, fds: tuple[int, ...]) -> Iterator[subprocess.Popen[str]]:
    """Run a role; whatever happens in the test, the process is gone afterwards."""
    command = [sys.executable, "-m", "tests.memory.peers", role, *map(str, (*fds, *arguments))]
    process = subprocess.Popen(command, pass_fds=fds, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def make_record(sequence: int) -> bytes:
    """Record number `sequence`, up to 30 KB: long enough to be killed in the middle of."""
    start = sequence * 7919 % 30_011
    number = struct.pack("Q", sequence)
    return number + NOISE[start : start + sequence * 104_729 % 30_011] + number


def pop_or_sleep(consumer: Consumer, wake_fd: int) -> bytes:
    """The next record, sleeping for it; a lost wake-up ends in the assertion."""
    poll = select.poll()
    poll.register(wake_fd, select.POLLIN)
    while True:
        record = consumer.pop()
        if record is not None:
            return record
        if consumer.prepare_sleep():
            ready = poll.poll(DEADLINE_S * 1000)
            consumer.finish_sleep()
            assert ready, "nobody woke this consumer"
            os.eventfd_read(wake_fd)


def push_when_there_is_room(producer: Producer, record: bytes) -> None:
    give_up = time.monotonic() + DEADLINE_S
    while not producer.push(record):
        assert time.monotonic() < give_up, "the ring stays full"
        time.sleep(0.0002)


def produce(ring_fd: int, wake_fd: int, count: int) -> None:
    producer = Ring.attach(ring_fd).producer(wake_fd)
    for sequence in range(count):
        push_when_there_is_room(producer, make_record(sequence))


def consume(ring_fd: int, wake_fd: int, count: int) -> None:
    consumer = Ring.attach(ring_fd).consumer(wake_fd)
    for sequence in range(count):
        assert pop_or_sleep(consumer, wake_fd) == make_record(sequence)


def echo(there_fd: int, wake_fd: int, back_fd: int, count: int) -> None:
    consumer = Ring.attach(there_fd).consumer(wake_fd)
    producer = Ring.attach(back_fd).producer(-1)
    for _ in range(count):
        assert producer.push(pop_or_sleep(consumer, wake_fd))


def push(ring_fd: int, wake_fd: int, count: int) -> None:
    """`count` short records as fast as there is room."""
    producer = Ring.attach(ring_fd).producer(wake_fd)
    record = bytes(64)
    while count > 0:
        count -= producer.push(record)


def stamp(there_fd: int, wake_fd: int, back_fd: int, count: int) -> None:
    """Answer each record with the time at which it was popped."""
    consumer = Ring.attach(there_fd).consumer(wake_fd)
    producer = Ring.attach(back_fd).producer(-1)
    for _ in range(count):
        pop_or_sleep(consumer, wake_fd)
        assert producer.push(time.monotonic_ns().to_bytes(8))


def make_key(number: int) -> bytes:
    return random.Random(number).randbytes(KEY_SIZE - 4) + struct.pack(">I", number % 3)


def fill(data: memoryview, block: int, key: bytes) -> None:
    content = key * (BLOCK_BYTES // KEY_SIZE + 1)
    data[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES] = content[:BLOCK_BYTES]


def holds(data: memoryview, block: int, key: bytes) -> bool:
    content = key * (BLOCK_BYTES // KEY_SIZE + 1)
    return data[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES] == content[:BLOCK_BYTES]


def pin(ledger_fd: int, data_fd: int, keys: int, seed: int, count: int) -> None:
    """Pin blocks, compare their bytes with their keys, unpin them: `count` of them."""
    ledger = Ledger.attach(ledger_fd)
    data = memoryview(map_segment(data_fd))
    known = [make_key(number) for number in range(keys)]
    rng = random.Random(seed)
    checked = 0
    give_up = time.monotonic() + DEADLINE_S
    while checked < count:
        assert time.monotonic() < give_up
        wanted = rng.choices(known, k=20)
        packed = ledger.pin_many(b"".join(wanted))
        pinned = 0
        for slot, key in zip(memoryview(packed).cast("Q"), wanted, strict=True):
            if slot != MISS_SLOT:
                assert holds(data, slot & 0xFFFFFFFF, key)
                pinned += 1
        assert ledger.unpin_many(packed) == pinned
        checked += pinned


def know(ledger_fd: int, count: int) -> None:
    """Read the content until it was known `count` times: an epoch written twice, and not of
    one before the epoch that was read just before."""
    ledger = Ledger.attach(ledger_fd)
    give_up = time.monotonic() + DEADLINE_S
    known = 0
    while known < count:
        assert time.monotonic() < give_up
        epoch = ledger.epoch
        content = ledger.content
        if content:
            assert content[:8] == content[8:]
            assert int.from_bytes(content[:8]) >= epoch, "content of before the reset"
            known += 1


ROLES: dict[str, Callable[..., None]] = {
    "produce": produce,
    "consume": consume,
    "echo": echo,
    "push": push,
    "stamp": stamp,
    "pin": pin,
    "know": know,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*map(int, sys.argv[2:]))
