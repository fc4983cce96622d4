"""Pulls that begin before the scheduler has heard of their request.

vLLM's input thread has a request, keys and all, while the scheduler is still busy with a step; a
pull that starts there is often over when the scheduler first looks. That thread must not
allocate, so landing slots are kept in stock for it.
"""

import struct
import time
from collections import deque
from collections.abc import Iterator

import msgspec

from mpkv.engine.booked_pull import SLOT_BYTES, BookedPull, as_message
from mpkv.engine.fit import slots_of
from mpkv.engine.supervisor import Supervisor
from mpkv.messages import KeyGroup

# How long after its pull's deadline a request may still come: a step takes as long as it takes.
LATE_S = 10.0


class EarlyPulls:
    """`begin` is the input thread's, all else is the scheduler thread's. What
    both touch are deques, whose ends are atomic under the GIL."""

    def __init__(self, supervisor: Supervisor, size: int, key_size: int, deadline_s: float) -> None:
        """`size` slots are to be in stock, 0 for no early pulls at all."""
        self._supervisor = supervisor
        self._size = size
        self._key_size = key_size
        self._deadline_s = deadline_s
        self._stock: deque[int] = deque()
        self._begun: deque[BookedPull] = deque()
        self._unsent: deque[BookedPull] = deque()
        # The last that the scheduler thread knows of; numbers grow.
        self._newest = 0
        # Requests that the scheduler has not heard of, oldest first.
        self._unclaimed: dict[str, BookedPull] = {}
        self._encode = msgspec.msgpack.Encoder().encode

    # --- the input thread ------------------------------------------------------------

    def has(self, request: str) -> bool:
        """Whether a pull has begun for `request` that is not claimed; asked in the order in
        which it moves."""
        return any(pull.request == request for pull in [*self._begun]) or request in self._unclaimed

    def begin(
        self,
        number: int,
        request: str,
        peer: str,
        groups: tuple[KeyGroup, ...],
        present: bytes,
        epoch: int,
    ) -> bool:
        """Send a pull at once; False if there are no slots or no helpers for it."""
        count = sum(slots_of(group, self._key_size) for group in groups)
        link = self._supervisor.link
        # Only this thread takes from the stock, so what is there stays there.
        if link is None or not 0 < count <= len(self._stock):
            return False
        now = time.monotonic()
        pull = BookedPull(
            number,
            request,
            peer,
            groups,
            b"".join(group.keys for group in groups),
            count,
            present,
            epoch,
            now,
            now + self._deadline_s,
            struct.pack(f"={count}Q", *(self._stock.popleft() for _ in range(count))),
            link.generation,
        )
        # Before it is sent: an answer must never be for a pull that nobody knows.
        self._begun.append(pull)
        record = self._encode(as_message(pull))
        if len(record) > link.max_record or not link.to_control_early.push(record):
            self._unsent.append(pull)
        return True

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

    def begun(self) -> Iterator[BookedPull]:
        """Pulls that have begun since the last time, in order."""
        while self._begun:
            pull = self._begun[0]
            self._newest = pull.number
            # Never in neither, see `has`.
            self._unclaimed[pull.request] = pull
            self._begun.popleft()
            yield pull

    def unsent(self) -> Iterator[BookedPull]:
        """Of those that have begun, the ones that could not be sent."""
        while self._unsent and self._unsent[0].number <= self._newest:
            yield self._unsent.popleft()

    def unclaimed(self, request: str) -> BookedPull | None:
        """The pull that has begun for `request`."""
        return self._unclaimed.get(request)

    def forget(self, request: str) -> None:
        """The scheduler has heard of `request`."""
        del self._unclaimed[request]

    def abandoned(self, now: float) -> Iterator[BookedPull]:
        """Pulls whose request should have come long ago: vLLM has rejected it meanwhile."""
        while self._unclaimed:
            pull = next(iter(self._unclaimed.values()))
            if now < pull.deadline + LATE_S:
                return
            yield self._unclaimed.pop(pull.request)
