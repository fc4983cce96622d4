"""Rings between real processes, also when one of them is killed at any moment."""

import os
import random
import struct
import time
from collections.abc import Iterator

import pytest

from mpkv.memory import Ring, map_segment
from mpkv.memory._native import LAYOUT
from tests.memory.peers import make_record, peer, pop_or_sleep, push_when_there_is_room

CAPACITY = 1 << 18
ENDLESS = 1 << 40


@pytest.fixture
def ring() -> Iterator[Ring]:
    ring = Ring.create(CAPACITY, "test")
    yield ring
    ring.close()


@pytest.fixture
def wake_fd() -> Iterator[int]:
    fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    yield fd
    os.close(fd)


def test_every_record_crosses_whole_and_in_order(ring: Ring, wake_fd: int) -> None:
    count = 20_000
    with peer("produce", count, fds=(ring.fd, wake_fd)) as producer:
        consumer = ring.consumer(wake_fd)
        for sequence in range(count):
            assert pop_or_sleep(consumer, wake_fd) == make_record(sequence)
        assert producer.wait(10) == 0
        assert consumer.pop() is None


@pytest.mark.parametrize("seed", range(8))
def test_a_killed_producer_leaves_whole_records_only(ring: Ring, wake_fd: int, seed: int) -> None:
    rng = random.Random(seed)
    consumer = ring.consumer(wake_fd)
    sequence = 0
    with peer("produce", ENDLESS, fds=(ring.fd, wake_fd)) as producer:
        for _ in range(rng.randrange(1, 1500)):
            assert pop_or_sleep(consumer, wake_fd) == make_record(sequence)
            sequence += 1
        producer.kill()
        producer.wait(10)
    left = 0
    while (record := consumer.pop()) is not None:
        assert record == make_record(sequence)
        sequence += 1
        left += 1
    assert left <= CAPACITY // 24
    assert consumer.prepare_sleep() is True


def records_left(ring: Ring) -> Iterator[bytes]:
    """What lies between head and tail, read without taking it."""
    with map_segment(ring.fd) as segment:
        (head,) = struct.unpack_from("Q", segment, LAYOUT["ring.head"])
        (tail,) = struct.unpack_from("Q", segment, LAYOUT["ring.tail"])
        records = segment[LAYOUT["ring.records"] :] * 2
        while head < tail:
            start = head % CAPACITY
            (length,) = struct.unpack_from("Q", records, start)
            yield records[start + 8 : start + 8 + length]
            head += 8 + (length + 7) // 8 * 8
        assert head == tail


@pytest.mark.parametrize("seed", range(8))
def test_a_killed_consumer_leaves_the_rest_to_be_seen(ring: Ring, wake_fd: int, seed: int) -> None:
    rng = random.Random(seed)
    producer = ring.producer(wake_fd)
    with peer("consume", ENDLESS, fds=(ring.fd, wake_fd)) as consumer:
        for sequence in range(rng.randrange(100, 2500)):
            push_when_there_is_room(producer, make_record(sequence))
        consumer.kill()
        consumer.wait(10)
    sequence += 1
    while producer.push(make_record(sequence)):
        sequence += 1
    left = list(records_left(ring))
    assert 4 < len(left) <= sequence
    for number, record in enumerate(left, start=sequence - len(left)):
        assert record == make_record(number)
    assert producer.push(make_record(sequence)) is False


def test_no_wake_up_is_lost(ring: Ring, wake_fd: int) -> None:
    """One record at a time, there and back, each pushed while the other side falls asleep.

    Its answer is awaited without sleeping, so that the next push comes within a
    microsecond or so of its `prepare_sleep`. A single lost wake-up stops everything.
    """
    back = Ring.create(4096, "back")
    rng = random.Random(1)
    count = 30_000
    with peer("echo", count, fds=(ring.fd, wake_fd, back.fd)) as other:
        producer, consumer = ring.producer(wake_fd), back.consumer(-1)
        for number in range(count):
            for _ in range(rng.randrange(120)):
                pass
            record = struct.pack("Q", number)
            assert producer.push(record)
            give_up = time.monotonic() + 10
            while (answer := consumer.pop()) is None:
                assert time.monotonic() < give_up, f"record {number} woke nobody"
            assert answer == record
        assert other.wait(10) == 0
    back.close()
