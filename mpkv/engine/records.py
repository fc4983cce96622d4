"""The records of pulls that were sent, from then until nothing can write their slots any more.

Each ends exactly once: by an answer of its control plane or by the end of its generation. Its
slots are freed then, or when a READ that may still write them has ended.
"""

import logging
import time
from typing import Protocol

import msgspec

from mpkv.engine.booked_pull import SLOT_BYTES, PullMeter, Record, as_message
from mpkv.engine.claims import Claims
from mpkv.engine.fit import KeyPicker
from mpkv.engine.overdue import Overdue
from mpkv.engine.supervisor import Link, Supervisor
from mpkv.errors import SegmentRefused
from mpkv.memory import PUBLISHED, Ledger
from mpkv.messages import (
    CancelPull,
    MissReason,
    Pulled,
    SlotsReturned,
    ToEngine,
)
from mpkv.trace import Trace

log = logging.getLogger("mpkv.engine")

# Records taken per call, so that one call stays short however much has piled up.
RECORDS_PER_CALL = 64


class Listener(Protocol):
    """Whose pulls they are."""

    def part_came(self, record: Record, slots: bytes, keys: bytes) -> None:
        """Make READY what has come into `slots`."""

    def record_ended(self, record: Record, reason: MissReason | None, detail: str) -> None:
        """Nothing more will come by it; `reason` is why not, if known."""

    def look_again(self) -> None:
        """A record may be one that the input thread has sent only now."""


class Records:
    """Sends records and takes their answers; never blocks, never allocates."""

    def __init__(
        self,
        ledger: Ledger,
        supervisor: Supervisor,
        meter: PullMeter,
        claims: Claims,
        listener: Listener,
        trace: Trace,
    ) -> None:
        self._ledger = ledger
        self._supervisor = supervisor
        self._meter = meter
        self._claims = claims
        self._listener = listener
        self._trace = trace
        self._overdue = Overdue()
        self._picker = KeyPicker(ledger.key_size)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(ToEngine).decode
        # The last generation whose processes are known to be reaped.
        self._ended = 0
        self.open: dict[int, Record] = {}
        # They failed, and a READ may still write their slots.
        self.held: dict[int, Record] = {}

    # --- to the control plane --------------------------------------------------------

    def send(self, link: Link, record: Record) -> None:
        encoded = self._encode(as_message(record))
        self.enter(record)
        if len(encoded) > link.max_record or not link.to_control.push(encoded):
            self.unsent(record.number)

    def enter(self, record: Record) -> None:
        """It has been sent, or is about to be."""
        pull = record.pull
        self.open[record.number] = pull.record = record
        request = pull.asker.request
        self._trace("pull_started", pull=record.number, request=request, peer=record.peer)
        if record.generation <= self._ended:
            self._drop(record, MissReason.HELPERS_DOWN, "the helpers died")

    def unsent(self, number: int) -> None:
        record = self.open.get(number)
        if record is not None:
            detail = "the ring to the control plane is full"
            self._drop(record, MissReason.QUEUE_FULL, detail)

    def cancel(self, record: Record) -> None:
        link = self._supervisor.link
        if link is not None and link.generation == record.generation:
            # A full ring only means that the pull runs to its end for nothing.
            link.to_control.push(self._encode(CancelPull(record.number)))

    # --- from the control plane ------------------------------------------------------

    def drain(self) -> bool:
        """Take what the helpers have announced; False if there may be more."""
        while self._supervisor.dead:
            self._end_generation(self._supervisor.dead.popleft())
        link = self._supervisor.link
        if link is None:
            return True
        for _ in range(RECORDS_PER_CALL):
            try:
                message = link.from_control.pop()
            except SegmentRefused as error:
                self._distrust(link.generation, f"its ring is impossible: {error}")
                return False
            if message is None:
                # Only now: an answer that has come and was not read is not overdue.
                oldest = next(iter(self.open.values()), None)
                if self._overdue.look(oldest, link, time.monotonic()):
                    self._distrust(link.generation, "a pull is long overdue")
                return True
            self._take(link, message)
        return False

    def _take(self, link: Link, encoded: bytes) -> None:
        try:
            message = self._decode(encoded)
        except msgspec.MsgspecError as error:
            self._distrust(link.generation, f"a record cannot be read: {error}")
            return
        if isinstance(message, SlotsReturned):
            held = self.held.get(message.pull)
            if held is not None and held.generation == link.generation:
                del self.held[message.pull]
                self._release(held)
            return
        if message.pull not in self.open:
            self._listener.look_again()
        record = self.open.get(message.pull)
        if record is None or record.generation != link.generation:
            log.debug("a record for pull %s, which is not open; dropped", message.pull)
        elif isinstance(message, Pulled):
            self._take_part(record, message)
        elif message.slots_held:
            self._hold(record, message.reason, message.detail)
        else:
            self._drop(record, message.reason, message.detail)

    def _outdated(self, record: Record) -> tuple[MissReason, str] | None:
        """Why what it brings is not for the weights that there are now."""
        if record.pull.asker.epoch != self._ledger.epoch:
            return MissReason.CACHE_RESET, "the cache was reset"
        if record.content != self._ledger.content:
            return MissReason.CONTENT, "the weights may have changed"
        return None

    def _take_part(self, record: Record, message: Pulled) -> None:
        slots = message.slots
        keys = None
        if slots == record.slots[: len(slots)]:
            keys = self._picker.pick(record.keys, message.indexes, record.seen)
        if keys is None or len(keys) // self._ledger.key_size != len(slots) // SLOT_BYTES:
            # Who says so cannot be believed about the READ either.
            self._hold(record, MissReason.TRANSFER_FAILED, "its result is malformed")
            self._distrust(record.generation, "it names keys or slots that it was not given")
            return
        record.slots = record.slots[len(slots) :]
        why = self._outdated(record)
        if why is not None:
            self._free(record, slots)
            if not message.more:
                self._drop(record, *why)
            return
        if slots:
            record.granted = record.granted or message.granted
            record.confirmed = message.confirmed
            record.blocks += len(slots) // SLOT_BYTES
            self._listener.part_came(record, slots, keys)
        self._trace(
            "pull_adopted",
            pull=record.number,
            request=record.pull.asker.request,
            blocks=len(slots) // SLOT_BYTES,
            started=record.started,
            granted=message.granted,
            read=message.read,
            confirmed=message.confirmed,
        )
        if not message.more:
            self._release(record)
            self._close(record, message.missing, "the rest is not there")

    # --- the end ---------------------------------------------------------------------

    def publish(self, record: Record, slots: bytes, keys: bytes, pin: bool) -> tuple[bytes, bytes]:
        """Make blocks READY; the slots and keys of those that are."""
        results = self._ledger.publish(slots, keys, pin, copies=True)
        self._claims.give_back(record.pull, slots)
        if results.count(PUBLISHED) == len(results):
            return slots, keys
        size = self._ledger.key_size
        good = [i for i, result in enumerate(results) if result == PUBLISHED]
        return (
            b"".join(slots[i * SLOT_BYTES : (i + 1) * SLOT_BYTES] for i in good),
            b"".join(keys[i * size : (i + 1) * size] for i in good),
        )

    def _hold(self, record: Record, reason: MissReason, detail: str) -> None:
        self.held[record.number] = record
        self._close(record, reason, detail)

    def _drop(self, record: Record, reason: MissReason, detail: str) -> None:
        """With slots that nobody else will ever write."""
        self._release(record)
        self._close(record, reason, detail)

    def _close(self, record: Record, reason: MissReason | None, detail: str) -> None:
        del self.open[record.number]
        record.pull.record = None
        if record.blocks:
            started = record.started
            granted_s, confirmed_s = record.granted - started, record.confirmed - started
            self._meter.pulled(record.peer, record.blocks, granted_s, confirmed_s)
        self._listener.record_ended(record, reason, detail)

    def _release(self, record: Record) -> None:
        slots, record.slots = record.slots, b""
        self._free(record, slots)

    def _free(self, record: Record, slots: bytes) -> None:
        self._ledger.free(slots)
        self._claims.give_back(record.pull, slots)

    def _end_generation(self, generation: int) -> None:
        """Its processes are reaped: no READ of theirs can write any more."""
        self._ended = generation
        for record in [r for r in self.held.values() if r.generation == generation]:
            del self.held[record.number]
            self._release(record)
        for record in [r for r in self.open.values() if r.generation == generation]:
            self._drop(record, MissReason.HELPERS_DOWN, "the helpers died")

    def _distrust(self, generation: int, why: str) -> None:
        log.error("the control plane is replaced: %s", why)
        self._supervisor.distrust(generation)
