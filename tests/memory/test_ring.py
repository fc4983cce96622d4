"""What a ring promises, seen from one process."""

import os
import struct
from collections.abc import Iterator

import pytest

from mpkv.errors import RingClaimed, SegmentRefused
from mpkv.memory import Consumer, Producer, Ring
from mpkv.memory._native import LAYOUT

CAPACITY = 4096


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


@pytest.fixture
def ends(ring: Ring, wake_fd: int) -> Iterator[tuple[Producer, Consumer]]:
    """The producer here, the consumer on a second mapping, as in another process."""
    other = Ring.attach(ring.fd)
    yield ring.producer(wake_fd), other.consumer(wake_fd)
    other.close()


def signals(wake_fd: int) -> int:
    try:
        return os.eventfd_read(wake_fd)
    except BlockingIOError:
        return 0


def test_records_come_out_whole_and_in_order(ends: tuple[Producer, Consumer]) -> None:
    producer, consumer = ends
    records = [b"", b"a", b"12345678", bytes(range(256)), b"x" * 1001]
    for record in records:
        assert producer.push(record) is True
    assert [consumer.pop() for _ in records] == records
    assert consumer.pop() is None


def test_records_run_over_the_end_of_the_ring(ends: tuple[Producer, Consumer]) -> None:
    producer, consumer = ends
    for i in range(500):
        record = bytes([i % 256]) * (i * 37 % 900)
        assert producer.push(record)
        assert consumer.pop() == record


def test_a_full_ring_takes_nothing_until_there_is_room(ends: tuple[Producer, Consumer]) -> None:
    producer, consumer = ends
    pushed = 0
    while producer.push(struct.pack("Q", pushed) * 12):
        pushed += 1
    assert pushed == CAPACITY // (8 + 96)
    assert producer.push(b"x" * 96) is False
    assert consumer.pop() == struct.pack("Q", 0) * 12
    assert producer.push(struct.pack("Q", pushed) * 12) is True
    for i in range(1, pushed + 1):
        assert consumer.pop() == struct.pack("Q", i) * 12
    assert consumer.pop() is None


def test_the_longest_record_fills_an_empty_ring(
    ring: Ring, ends: tuple[Producer, Consumer]
) -> None:
    producer, consumer = ends
    assert ring.max_record == CAPACITY - 8
    longest = os.urandom(ring.max_record)
    assert producer.push(b"one")
    assert consumer.pop() == b"one"
    assert producer.push(longest)
    assert consumer.pop() == longest
    assert producer.push(b"one")
    assert producer.push(longest) is False
    with pytest.raises(ValueError, match="at most 4088 bytes, found 4089"):
        producer.push(longest + b"x")


def test_any_buffer_can_be_pushed(ends: tuple[Producer, Consumer]) -> None:
    producer, consumer = ends
    for buffer in (memoryview(b"abcdef")[1:3], bytearray(b"bc")):
        assert producer.push(buffer)
        assert consumer.pop() == b"bc"
    with pytest.raises(TypeError):
        producer.push("bc")  # type: ignore[arg-type]


@pytest.mark.parametrize("capacity", [0, 1, 4095, 2048, 4097, 6000, 1 << 31, 1 << 63])
def test_a_bad_capacity_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match=rf"power of two from 4096 .* found {capacity}\."):
        Ring.create(capacity, "test")


def test_each_side_is_claimed_once(ring: Ring) -> None:
    other = Ring.attach(ring.fd)
    ring.producer(-1)
    ring.consumer(-1)
    for claim, side in ((other.producer, "producer"), (other.consumer, "consumer")):
        with pytest.raises(RingClaimed, match=f"{side} side .* claimed by process {os.getpid()};"):
            claim(-1)
    other.close()


def test_push_signals_only_a_sleeping_consumer(
    ends: tuple[Producer, Consumer], wake_fd: int
) -> None:
    producer, consumer = ends
    producer.push(b"1")
    assert signals(wake_fd) == 0
    assert consumer.prepare_sleep() is False  # there is a record
    producer.push(b"2")
    assert signals(wake_fd) == 0
    assert (consumer.pop(), consumer.pop()) == (b"1", b"2")

    assert consumer.prepare_sleep() is True
    producer.push(b"3")
    producer.push(b"4")
    assert signals(wake_fd) == 1  # one for the sleep, not one for each record
    consumer.finish_sleep()
    assert (consumer.pop(), consumer.pop()) == (b"3", b"4")

    assert consumer.prepare_sleep() is True
    consumer.finish_sleep()
    producer.push(b"5")
    assert signals(wake_fd) == 0


def test_a_consumer_without_an_eventfd_cannot_sleep(ring: Ring) -> None:
    producer, consumer = ring.producer(-1), ring.consumer(-1)
    with pytest.raises(ValueError, match="without an eventfd"):
        consumer.prepare_sleep()
    assert producer.push(b"1")
    assert consumer.pop() == b"1"


def test_a_failed_signal_is_an_error(ring: Ring, wake_fd: int) -> None:
    consumer = ring.consumer(wake_fd)
    gone = os.dup(wake_fd)
    producer = ring.producer(gone)
    os.close(gone)
    assert consumer.prepare_sleep()
    with pytest.raises(OSError, match="Bad file descriptor"):
        producer.push(b"1")


def test_a_closed_ring_refuses_its_sides(ends: tuple[Producer, Consumer], ring: Ring) -> None:
    producer, _ = ends
    ring.close()
    ring.close()
    with pytest.raises(ValueError, match="closed"):
        producer.push(b"1")
    with pytest.raises(ValueError, match="closed"):
        ring.consumer(-1)
    assert ring.fd == -1


def put(ring: Ring, field: str, value: int) -> None:
    os.pwrite(ring.fd, struct.pack("Q", value), LAYOUT[field])


@pytest.mark.parametrize(
    "length", [4088 + 1, CAPACITY, 1 << 32, (1 << 64) - 1, (1 << 64) - 8, (1 << 64) - 16, 17]
)
def test_an_impossible_length_is_refused(
    ends: tuple[Producer, Consumer], ring: Ring, length: int
) -> None:
    producer, consumer = ends
    producer.push(b"x" * 16)
    put(ring, "ring.records", length)
    for _ in range(2):
        with pytest.raises(SegmentRefused, match="Expected a whole record at ring position 0"):
            consumer.pop()


@pytest.mark.parametrize("tail", [4, CAPACITY + 8, 1 << 63, (1 << 64) - 8])
def test_an_impossible_tail_is_refused(
    ends: tuple[Producer, Consumer], ring: Ring, tail: int
) -> None:
    _, consumer = ends
    put(ring, "ring.tail", tail)
    assert consumer.prepare_sleep() is False
    with pytest.raises(SegmentRefused, match="Expected a whole record"):
        consumer.pop()


@pytest.mark.parametrize("head", [4, CAPACITY + 8, 1 << 63, (1 << 64) - 8])
def test_a_consumer_with_an_impossible_head_leaves_the_ring_full(
    ends: tuple[Producer, Consumer], ring: Ring, head: int
) -> None:
    producer, _ = ends
    put(ring, "ring.head", head)
    assert producer.push(bytes(CAPACITY - 8)) is True  # fits by the head seen at the claim
    assert producer.push(b"") is False


def test_claiming_a_ring_with_impossible_positions_is_refused(ring: Ring) -> None:
    put(ring, "ring.tail", 3)
    with pytest.raises(SegmentRefused, match="positions within the capacity"):
        ring.producer(-1)
    with pytest.raises(SegmentRefused, match="positions within the capacity"):
        ring.consumer(-1)
