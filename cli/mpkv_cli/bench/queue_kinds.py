"""Queues from one process to one other, alike to whoever measures them.

A queue is made before the processes fork; each side then takes its end of it.
"""

import ctypes
import importlib.util
import multiprocessing
import os
import queue
import select
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from mpkv.memory import Ring

# Records that a queue can hold: the same for all of them.
DEPTH = 4096
RECORD_BYTES = 64
WAIT_S = 20.0

# Returns False when the queue is full.
Send = Callable[[bytes], bool]


class Receiver(Protocol):
    def take(self) -> bytes | None:
        """The next record, or None; does not wait."""

    def wait(self) -> bytes:
        """The next record, asleep until there is one. Raises TimeoutError."""


class Kind(Protocol):
    @property
    def name(self) -> str: ...
    def sender(self, *, wakes: bool) -> Send:
        """`wakes` False: the receiver never sleeps."""

    def receiver(self) -> Receiver: ...
    def close(self) -> None: ...


class RingKind:
    """mpkv's ring."""

    name = "mpkv ring"

    def __init__(self) -> None:
        # A record takes 8 bytes more than it has.
        self._ring = Ring.create(1 << (DEPTH * (RECORD_BYTES + 8) - 1).bit_length(), "bench")
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def sender(self, *, wakes: bool) -> Send:
        # It finds out by itself whether the receiver sleeps.
        return self._ring.producer(self._wake_fd).push

    def receiver(self) -> "_RingReceiver":
        return _RingReceiver(self._ring, self._wake_fd)

    def signals(self) -> int:
        """System calls that the sender has made to wake the receiver since the last look."""
        try:
            return os.eventfd_read(self._wake_fd)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        self._ring.close()
        os.close(self._wake_fd)


class _RingReceiver:
    def __init__(self, ring: Ring, wake_fd: int) -> None:
        self._consumer = ring.consumer(wake_fd)
        self.take = self._consumer.pop
        self._wake_fd = wake_fd
        self._poller = select.poll()
        self._poller.register(wake_fd, select.POLLIN)

    def wait(self) -> bytes:
        while (record := self.take()) is None:
            if self._consumer.prepare_sleep():
                if not self._poller.poll(WAIT_S * 1000):
                    raise TimeoutError("nothing came")
                os.eventfd_read(self._wake_fd)
            self._consumer.finish_sleep()
        return record


class PipeQueueKind:
    """The standard library's queue between processes: a pipe, a lock, a feeding thread."""

    name = "multiprocessing.Queue"

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self._queue: multiprocessing.Queue[bytes] = context.Queue(DEPTH)

    def sender(self, *, wakes: bool) -> Send:
        def send(record: bytes) -> bool:
            try:
                self._queue.put_nowait(record)
            except queue.Full:
                return False
            return True

        return send

    def receiver(self) -> "_PipeQueueReceiver":
        return _PipeQueueReceiver(self._queue)

    def close(self) -> None:
        self._queue.close()
        self._queue.join_thread()


class _PipeQueueReceiver:
    def __init__(self, pipe: "multiprocessing.Queue[bytes]") -> None:
        self._queue = pipe

    def take(self) -> bytes | None:
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None

    def wait(self) -> bytes:
        try:
            return self._queue.get(timeout=WAIT_S)
        except queue.Empty:
            raise TimeoutError("nothing came") from None


class _IceoryxRecord(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_uint8 * RECORD_BYTES),)


class IceoryxKind:
    """iceoryx2's lock-free publish and subscribe, with its notifications to wake by."""

    name = "iceoryx2"

    def __init__(self) -> None:
        # The sockets in it have paths, and those are bounded: $TMPDIR may be too deep.
        self._folder = tempfile.TemporaryDirectory(prefix="mpkv-bench-", dir="/tmp")
        self._prefix = f"mpkv-bench-{uuid.uuid4().hex[:8]}-"
        # Whatever belongs to a side must live as long as it.
        self._kept: list[Any] = []

    @staticmethod
    def installed() -> bool:
        return importlib.util.find_spec("iceoryx2") is not None

    def sender(self, *, wakes: bool) -> Send:
        records, events = self._services()
        strategy = self._library.BackpressureStrategy.DiscardData
        publisher = records.publisher_builder().backpressure_strategy(strategy).create()
        notify = events.notifier_builder().create().notify

        def send(record: bytes) -> bool:
            # The number of subscribers that had room for it.
            if not publisher.send_copy(_IceoryxRecord.from_buffer_copy(record)):
                return False
            if wakes:
                notify()
            return True

        return send

    def receiver(self) -> "_IceoryxReceiver":
        records, events = self._services()
        subscriber = records.subscriber_builder().buffer_size(DEPTH).create()
        listener = events.listener_builder().create()
        return _IceoryxReceiver(self._library, subscriber, listener)

    def close(self) -> None:
        self._kept.clear()
        self._folder.cleanup()
        # It leaves its own bookkeeping behind, for whoever comes next.
        for path in Path("/dev/shm").glob(f"{self._prefix}*"):
            path.unlink()

    def _services(self) -> tuple[Any, Any]:
        import iceoryx2

        self._library: Any = iceoryx2
        iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
        config = iceoryx2.config.default()
        config.global_cfg.prefix = iceoryx2.FileName.new(self._prefix)
        config.global_cfg.root_path = iceoryx2.Path.new(self._folder.name)
        node = iceoryx2.NodeBuilder.new().config(config).create(iceoryx2.ServiceType.Ipc)
        records = (
            node.service_builder(iceoryx2.ServiceName.new("records"))
            .publish_subscribe(_IceoryxRecord)
            .enable_safe_overflow(False)
            .subscriber_max_buffer_size(DEPTH)
            .open_or_create()
        )
        events = node.service_builder(iceoryx2.ServiceName.new("events")).event().open_or_create()
        self._kept += [node, records, events]
        return records, events


class _IceoryxReceiver:
    def __init__(self, library: Any, subscriber: Any, listener: Any) -> None:
        self._subscriber = subscriber
        self._listener = listener
        self._wait = library.Duration.from_secs_f64(WAIT_S)

    def take(self) -> bytes | None:
        sample = self._subscriber.receive()
        return None if sample is None else bytes(sample.payload().contents)

    def wait(self) -> bytes:
        while (record := self.take()) is None:
            if not self._listener.timed_wait(self._wait):
                raise TimeoutError("nothing came")
        return record


def all_kinds() -> list[type[RingKind] | type[PipeQueueKind] | type[IceoryxKind]]:
    """Those that are installed here."""
    kinds: list[type[RingKind] | type[PipeQueueKind] | type[IceoryxKind]] = [
        RingKind,
        PipeQueueKind,
    ]
    return [*kinds, IceoryxKind] if IceoryxKind.installed() else kinds
