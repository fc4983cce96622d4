"""Pulls that begin before the scheduler has heard of their request.

vLLM's input thread has a request, keys and all, while the scheduler is still busy with a step; a
pull that starts there is often over when the scheduler first looks. That thread must not
allocate, so landing slots are kept in stock for it.
"""

import struct
from collections import deque
from collections.abc import Iterator

import msgspec

from mpkv.engine.booked_pull import SLOT_BYTES, BookedPull, Record, Span, Waiter, as_message
from mpkv.engine.coming import Coming
from mpkv.engine.fit import slots_of
from mpkv.engine.supervisor import Link, Supervisor

# How long after its pull's deadline a request may still come: a step takes as long as it takes.
LATE_S = 10.0


class EarlyPulls:
    """`begin` is the input thread's, all else is the scheduler thread's. What
    both touch are deques, whose ends are atomic under the GIL, and `coming`."""

    def __init__(self, supervisor: Supervisor, coming: Coming, size: int, key_size: int) -> None:
        """`size` slots are to be in stock, 0 for no early pulls at all."""
        self._supervisor = supervisor
        self._coming = coming
        self._size = size
        self._key_size = key_size
        self._stock: deque[int] = deque()
        self._begun: deque[tuple[Waiter, Record | None]] = deque()
        self._unsent: deque[Record] = deque()
        # The last that the scheduler thread knows of; numbers grow.
        self._newest = 0
        # Requests that the scheduler has not heard of, oldest first.
        self._unclaimed: dict[str, Waiter] = {}
        self._encode = msgspec.msgpack.Encoder().encode

    # --- the input thread ------------------------------------------------------------

    def has(self, request: str) -> bool:
        """Whether a pull has begun for `request` that is not claimed; asked in the order in
        which it moves."""
        begun = [*self._begun]
        return any(waiter.request == request for waiter, _ in begun) or request in self._unclaimed

    def begin(self, number: int, waiter: Waiter, content: bytes) -> bool:
        """Send a pull at once for what is not on its way; False if there are no slots or no
        helpers for it, or nobody knows the content."""
        link = self._supervisor.link
        if link is None or not content or not self._size or waiter.first == waiter.end:
            return False
        at, stop = self._coming.gap(waiter)
        if at == stop:
            self._begun.append((waiter, None))
            return True
        record = self._record(number, waiter, at, stop, link, content)
        if record is None:
            return False
        # Before it is sent: an answer must never be for a pull that nobody knows.
        self._coming.add(record.pull)
        self._begun.append((waiter, record))
        encoded = self._encode(as_message(record))
        if len(encoded) > link.max_record or not link.to_control_early.push(encoded):
            self._unsent.append(record)
        return True

    def _record(
        self, number: int, waiter: Waiter, at: int, stop: int, link: Link, content: bytes
    ) -> Record | None:
        """Asks for what `waiter` wants from `at` to `stop`; None if the stock is too small."""
        groups, keys = waiter.part(at, stop, self._key_size)
        count = sum(slots_of(group, self._key_size) for group in groups)
        # Only this thread takes from the stock, so what is there stays there.
        if not 0 < count <= len(self._stock):
            return None
        started = waiter.started
        pull = BookedPull(waiter, groups, keys, at, stop, count, started, large=False)
        record = Record(
            number,
            pull,
            waiter.peer,
            groups,
            keys,
            at,
            struct.pack(f"={count}Q", *(self._stock.popleft() for _ in range(count))),
            link.generation,
            started,
            waiter.deadline,
            bytearray(len(keys) // self._key_size),
            content,
        )
        # Whole before others can find it: they join and leave it as any other.
        span = Span(waiter, pull, at, stop)
        waiter.spans.append(span)
        pull.spans.append(span)
        pull.record = record
        return record

    # --- the scheduler thread --------------------------------------------------------

    @property
    def stock(self) -> int:
        """How many slots are ready."""
        return len(self._stock)

    def missing(self) -> int:
        """How many slots the stock lacks."""
        return self._size - len(self._stock)

    def restock(self, slots: bytes) -> None:
        self._stock.extend(struct.unpack(f"={len(slots) // SLOT_BYTES}Q", slots))

    def begun(self) -> Iterator[tuple[Waiter, Record | None]]:
        """Requests whose pulls have begun since the last time, in order; without a record
        what they want was on its way."""
        while self._begun:
            waiter, record = self._begun[0]
            if record is not None:
                self._newest = record.number
            # Never in neither, see `has`.
            self._unclaimed[waiter.request] = waiter
            self._begun.popleft()
            yield waiter, record

    def unsent(self) -> Iterator[Record]:
        """Of those that have begun, the ones that could not be sent."""
        while self._unsent and self._unsent[0].number <= self._newest:
            yield self._unsent.popleft()

    def unclaimed(self) -> list[Waiter]:
        return list(self._unclaimed.values())

    def find(self, request: str) -> Waiter | None:
        """What has begun for `request`, if the scheduler has not heard of it."""
        return self._unclaimed.get(request)

    def forget(self, request: str) -> None:
        """The scheduler has heard of `request`."""
        del self._unclaimed[request]

    def abandoned(self, now: float) -> Iterator[Waiter]:
        """Those whose request should have come long ago: vLLM has rejected it meanwhile."""
        while self._unclaimed:
            waiter = next(iter(self._unclaimed.values()))
            if now < waiter.deadline + LATE_S:
                return
            yield self._unclaimed.pop(waiter.request)
