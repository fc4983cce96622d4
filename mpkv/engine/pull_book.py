"""The pulls of one engine, as the scheduler thread keeps them.

Every pull that was opened ends exactly once: by a record of its control plane, by the
end of its generation, or, for the request that waits on it, by its deadline. Nothing
here blocks, and nothing allocates outside `start` and `start_waiting`.
"""

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable

import msgspec

from mpkv.engine.booked_pull import SLOT_BYTES, BookedPull, PullMeter, as_message
from mpkv.engine.claims import Claims
from mpkv.engine.early import EarlyPulls
from mpkv.engine.fit import KeyPicker, fit, slots_of
from mpkv.engine.overdue import Overdue
from mpkv.engine.supervisor import Link, Supervisor
from mpkv.errors import SegmentRefused
from mpkv.memory import LANDING, PUBLISHED, Ledger
from mpkv.messages import (
    CancelPull,
    KeyGroup,
    MissReason,
    Pulled,
    PullFailed,
    SlotsReturned,
    ToEngine,
)
from mpkv.trace import Trace

log = logging.getLogger("mpkv.engine")

# Records taken per call, so that one call stays short however much has piled up.
RECORDS_PER_CALL = 64


class PullBook:
    """Opens pulls, waits for none of them, and adopts what they bring."""

    def __init__(
        self,
        ledger: Ledger,
        supervisor: Supervisor,
        meter: PullMeter,
        deadline_s: float,
        trace: Trace,
        on_change: Callable[[bytes, bytes], None],
        head_start: float = 0.0,
    ) -> None:
        """`on_change(stored, evicted)` hears of keys that came and went, packed. `head_start` is
        the share of the tier that is kept ready for pulls that begin early."""
        self._ledger = ledger
        self._supervisor = supervisor
        self._meter = meter
        self._deadline_s = deadline_s
        self._trace = trace
        self._on_change = on_change
        self.claims = Claims(ledger)
        stock = int(ledger.blocks * head_start)
        self.early = EarlyPulls(supervisor, stock, ledger.key_size, deadline_s)
        # The last generation whose processes are known to be reaped.
        self._ended = 0
        self._overdue = Overdue()
        self._numbers = itertools.count(1)
        self._open: dict[int, BookedPull] = {}
        self._held: dict[int, BookedPull] = {}
        self._waiting: deque[BookedPull] = deque()
        self._by_request: dict[str, BookedPull] = {}
        self._adopted_keys: dict[str, bytes | frozenset[bytes]] = {}
        self._picker = KeyPicker(ledger.key_size)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(ToEngine).decode
        self._restock()

    # --- for the connector -----------------------------------------------------------

    def begin(self, request: str, peer: str, groups: tuple[KeyGroup, ...], present: bytes) -> bool:
        """Begin a pull on vLLM's input thread, if there is a stock for it; `start` finds it.

        Touches nothing that is the scheduler thread's.
        """
        if self.early.has(request) or request in self._by_request:
            return False
        number = next(self._numbers)
        return self.early.begin(number, request, peer, groups, present, self._ledger.epoch)

    def claim(self, request: str) -> bool:
        """The request has come; False if no pull has begun for it before, or that brought
        nothing: then there is time for another."""
        self.drain()
        pull = self.early.unclaimed(request)
        if pull is None:
            return False
        if pull.missed:
            self.early.forget(request)
            self.looked_up(request)
            return False
        self._by_request[request] = pull
        self.early.forget(request)
        self._trace("pull_claimed", pull=pull.number, request=request, started=pull.started)
        return True

    def start(
        self, request: str, peer: str, groups: tuple[KeyGroup, ...], present: bytes = b""
    ) -> None:
        """Open a pull of `groups` from `peer` (`host:port`) for `request`.

        The request waits (`pending`) until the pull has ended; `present` are keys that
        are here and that it needs as well, packed. Allocates.
        """
        if request in self._by_request:
            return
        groups = fit(groups, self.claims.most, self._ledger.key_size)
        keys = groups[0].keys if len(groups) == 1 else b"".join(group.keys for group in groups)
        now = time.monotonic()
        pull = BookedPull(
            number=next(self._numbers),
            request=request,
            peer=peer,
            groups=groups,
            keys=keys,
            count=sum(slots_of(group, self._ledger.key_size) for group in groups),
            present=present,
            epoch=self._ledger.epoch,
            started=now,
            deadline=now + self._deadline_s,
        )
        self._by_request[request] = pull
        if not pull.count:
            self._settle(pull, MissReason.NO_SPACE, "a quarter of the tier is too little for it")
            return
        self._waiting.append(pull)
        self.start_waiting()

    def pending(self, request: str) -> bool:
        """Whether the request should be asked about again later."""
        pull = self._by_request.get(request)
        if pull is None or pull.settled:
            return False
        if time.monotonic() < pull.deadline:
            return True
        self._settle(pull, MissReason.TIMED_OUT, f"nothing within {self._deadline_s:g} s")
        return False

    def looked_up(self, request: str) -> None:
        """The request has seen its blocks; what it wants it pins by itself now."""
        self.claims.let_go(request)

    def adopted(self, request: str, key: bytes) -> bool:
        """Whether `key` came to this engine by the pull of this very request."""
        keys = self._adopted_keys.get(request)
        if isinstance(keys, bytes):
            # Split only when asked: most requests are never asked about twice.
            size = self._ledger.key_size
            keys = frozenset(keys[at : at + size] for at in range(0, len(keys), size))
            self._adopted_keys[request] = keys
        return keys is not None and key in keys

    def finished(self, request: str) -> None:
        """The request is over, wherever its pull is."""
        self.looked_up(request)
        self._adopted_keys.pop(request, None)
        pull = self._by_request.pop(request, None)
        if pull is None or pull.settled:
            return
        self._settle(pull, MissReason.ABORTED, "the request ended")
        link = self._supervisor.link
        if pull.number in self._open and link is not None and link.generation == pull.generation:
            # A full ring only means that the pull runs to its end for nothing.
            link.to_control.push(self._encode(CancelPull(pull.number)))

    # --- for the manager -------------------------------------------------------------

    def drain(self) -> None:
        """Take what the helpers have announced. Adopts, frees, never allocates."""
        self._take_early()
        while self._supervisor.dead:
            self._end_generation(self._supervisor.dead.popleft())
        link = self._supervisor.link
        if link is None:
            self._abandon()
            return
        for _ in range(RECORDS_PER_CALL):
            try:
                record = link.from_control.pop()
            except SegmentRefused as error:
                self._distrust(link.generation, f"its ring is impossible: {error}")
                return
            if record is None:
                # Only now: an answer that has come and was not read is not overdue.
                self._abandon()
                oldest = next(iter(self._open.values()), None)
                if self._overdue.look(oldest, link, time.monotonic()):
                    self._distrust(link.generation, "a pull is long overdue")
                return
            self._take(link, record)

    def start_waiting(self) -> None:
        """Send the pulls that wait their turn, in order, as far as there is room."""
        while self._waiting:
            pull = self._waiting[0]
            if not pull.settled:
                self.pending(pull.request)
            if pull.settled:
                self._waiting.popleft()
                continue
            if not self.claims.fits(pull.count):
                return
            self.claims.keep(pull)
            allocated = self._ledger.allocate(pull.count, LANDING)
            if allocated is None:
                self.looked_up(pull.request)
                return
            self._waiting.popleft()
            pull.slots, evicted = allocated
            self.claims.take(pull.count)
            if evicted:
                self._on_change(b"", evicted)
            self._send(pull)
        self._restock()

    def _restock(self) -> None:
        """Only what is not claimed: requests that wait for room come first."""
        wanted = min(self.early.missing(), self.claims.most - self.claims.taken)
        if wanted > 0:
            allocated = self._ledger.allocate(wanted, LANDING)
            if allocated is not None:
                slots, evicted = allocated
                self.early.restock(slots)
                if evicted:
                    self._on_change(b"", evicted)

    def cache_reset(self) -> None:
        """What open pulls bring is of the old content; `Pulled` is refused by epoch."""
        self.claims.let_all_go()
        self._adopted_keys.clear()
        for pull in [*self._open.values(), *self._waiting]:
            if not pull.settled:
                self._settle(pull, MissReason.CACHE_RESET, "the cache was reset")

    def idle(self) -> bool:
        return not (self._open or self._held or self._waiting)

    # --- one pull --------------------------------------------------------------------

    def _take_early(self) -> None:
        """Enter what the input thread has begun; from then on it is like any other pull."""
        for pull in self.early.begun():
            # Beyond what the others may claim: the stock was kept free for it.
            self.claims.keep(pull)
            self.claims.take(pull.count)
            self._open[pull.number] = pull
            self._trace("pull_started", pull=pull.number, request=pull.request, peer=pull.peer)
            if pull.generation <= self._ended:
                del self._open[pull.number]
                self._drop(pull, MissReason.HELPERS_DOWN, "the helpers died")
        for pull in self.early.unsent():
            if self._open.pop(pull.number, None) is not None:
                self._drop(pull, MissReason.QUEUE_FULL, "the ring to the control plane is full")

    def _abandon(self) -> None:
        """End pulls whose requests never came."""
        for pull in self.early.abandoned(time.monotonic()):
            self._by_request[pull.request] = pull
            self.finished(pull.request)

    def _drop(self, pull: BookedPull, reason: MissReason, detail: str) -> None:
        """A miss, with slots that nobody else will ever write."""
        self._release(pull)
        if not pull.settled:
            self._settle(pull, reason, detail)

    def _send(self, pull: BookedPull) -> None:
        link = self._supervisor.link
        if link is None:
            self._drop(pull, MissReason.HELPERS_DOWN, "the helpers are not running")
            return
        pull.generation = link.generation
        record = self._encode(as_message(pull))
        if len(record) > link.max_record or not link.to_control.push(record):
            self._drop(pull, MissReason.QUEUE_FULL, "the ring to the control plane is full")
            return
        self._open[pull.number] = pull
        self._trace("pull_started", pull=pull.number, request=pull.request, peer=pull.peer)

    def _settle(self, pull: BookedPull, reason: MissReason, detail: str) -> None:
        """Answer the request with a miss; its slots are a matter of their own."""
        pull.settled = pull.missed = True
        # What nobody has claimed cost no request anything: it pulls once more.
        if self.early.unclaimed(pull.request) is not pull:
            self._meter.missed(pull.peer, reason, detail)
            self._meter.lookup_ended(time.monotonic() - pull.started)
        self._trace("pull_missed", pull=pull.number, request=pull.request, reason=reason.value)

    def _release(self, pull: BookedPull) -> None:
        self._ledger.free(pull.slots)
        self.claims.give_back(pull.slots)
        pull.slots = b""

    def _end_generation(self, generation: int) -> None:
        """Its processes are reaped: no READ of theirs can write any more."""
        self._ended = generation
        for book in (self._open, self._held):
            for pull in [p for p in book.values() if p.generation == generation]:
                del book[pull.number]
                self._drop(pull, MissReason.HELPERS_DOWN, "the helpers died")

    def _distrust(self, generation: int, why: str) -> None:
        log.error("the control plane is replaced: %s", why)
        self._supervisor.distrust(generation)

    # --- records of the control plane ------------------------------------------------

    def _take(self, link: Link, record: bytes) -> None:
        try:
            message = self._decode(record)
        except msgspec.MsgspecError as error:
            self._distrust(link.generation, f"a record cannot be read: {error}")
            return
        if isinstance(message, SlotsReturned):
            held = self._held.get(message.pull)
            if held is not None and held.generation == link.generation:
                del self._held[message.pull]
                self._release(held)
            return
        if message.pull not in self._open:
            self._take_early()
        pull = self._open.get(message.pull)
        if pull is None or pull.generation != link.generation:
            log.debug("a record for pull %s, which is not open; dropped", message.pull)
            return
        del self._open[pull.number]
        if isinstance(message, Pulled):
            self._adopt(pull, message)
        else:
            self._fail(pull, message)

    def _fail(self, pull: BookedPull, message: PullFailed) -> None:
        if not message.slots_held:
            self._drop(pull, message.reason, message.detail)
            return
        self._held[pull.number] = pull
        if not pull.settled:
            self._settle(pull, message.reason, message.detail)

    def _adopt(self, pull: BookedPull, message: Pulled) -> None:
        if pull.epoch != self._ledger.epoch:
            self._drop(pull, MissReason.CACHE_RESET, "the cache was reset")
            return
        keys = self._picker.pick(pull.keys, message.indexes)
        used = len(message.slots)
        if (
            keys is None
            or len(keys) // self._ledger.key_size != used // SLOT_BYTES
            or message.slots != pull.slots[:used]
        ):
            # Who says so cannot be believed about the READ either.
            self._held[pull.number] = pull
            self._distrust(pull.generation, "it names keys or slots that it was not given")
            if not pull.settled:
                self._settle(pull, MissReason.TRANSFER_FAILED, "its result is malformed")
            return
        self._publish(pull, message.slots, keys)
        self._meter.pulled(
            pull.peer,
            used // SLOT_BYTES,
            message.granted - pull.started,
            message.confirmed - pull.started,
        )
        if not pull.settled:
            pull.settled = True
            self._meter.lookup_ended(time.monotonic() - pull.started)
            self._adopted_keys[pull.request] = keys
        self._trace(
            "pull_adopted",
            pull=pull.number,
            request=pull.request,
            blocks=used // SLOT_BYTES,
            started=pull.started,
            granted=message.granted,
            read=message.read,
            confirmed=message.confirmed,
        )

    def _publish(self, pull: BookedPull, slots: bytes, keys: bytes) -> None:
        """Make the blocks READY, pinned while the request has not looked yet."""
        pin = not pull.settled
        results = self._ledger.publish(slots, keys, pin)
        unused = pull.slots[len(slots) :]
        if unused:
            self._ledger.free(unused)
        self.claims.give_back(pull.slots)
        pull.slots = b""
        published, stored = slots, keys
        if results.count(PUBLISHED) != len(results):
            size = self._ledger.key_size
            good = [i for i, result in enumerate(results) if result == PUBLISHED]
            published = b"".join(slots[i * SLOT_BYTES : (i + 1) * SLOT_BYTES] for i in good)
            stored = b"".join(keys[i * size : (i + 1) * size] for i in good)
        if pin:
            self.claims.pin(pull.request, published)
        if stored:
            self._on_change(stored, b"")
