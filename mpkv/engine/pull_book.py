"""The pulls of one engine, as the scheduler thread keeps them.

What is on its way is waited for, whoever asked first: a request asks its source only for what no
pull brings yet. When a pull ends and has not brought it all, its own request is content; of
the others that waited for it the first asks for the rest, and the next wait for that. Nobody
asks twice, and nobody waits beyond his own deadline.

Nothing here blocks, and nothing allocates outside `start` and `start_waiting`.
"""

import itertools
import time
from collections.abc import Callable

from mpkv.engine.booked_pull import SLOT_BYTES, BookedPull, PullMeter, Record, Waiter
from mpkv.engine.claims import Claims
from mpkv.engine.coming import Coming
from mpkv.engine.early import EarlyPulls
from mpkv.engine.fit import fit, slots_of
from mpkv.engine.records import Records
from mpkv.engine.supervisor import Link, Supervisor
from mpkv.engine.turns import Turns
from mpkv.engine.waits import Waits
from mpkv.memory import LANDING, Ledger
from mpkv.messages import KeyGroup, MissReason
from mpkv.trace import Trace


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
        stock = int(ledger.blocks * head_start)
        self.claims = Claims(ledger, stock)
        self.turns = Turns(ledger, self.claims)
        self.coming = Coming(ledger.key_size)
        self.early = EarlyPulls(supervisor, self.coming, stock, ledger.key_size)
        self.records = Records(ledger, supervisor, meter, self.claims, self, trace)
        self._waits = Waits(
            ledger,
            meter,
            self.claims,
            self.coming,
            self.turns,
            self.early,
            self.records.cancel,
            trace,
        )
        self._numbers = itertools.count(1)
        self._by_request: dict[str, Waiter] = {}
        # Of keys that came for a request: split only when asked, which is once for most.
        self._split: dict[str, frozenset[bytes]] = {}
        self._restock()

    # --- for the connector -----------------------------------------------------------

    def begin(
        self,
        request: str,
        peer: str,
        groups: tuple[KeyGroup, ...],
        present: bytes,
        also: tuple[str, ...] = (),
    ) -> bool:
        """Begin a pull on vLLM's input thread, if there is a stock for it; `start` finds it.

        Touches nothing that is the scheduler thread's.
        """
        if self.early.has(request) or request in self._by_request:
            return False
        waiter = self._waiter(request, peer, groups, present, also)
        return self.early.begin(next(self._numbers), waiter, self._ledger.content)

    def claim(self, request: str) -> bool:
        """The request has come; False if no pull has begun for it before, or that brought
        nothing: then there is time for another."""
        self.drain()
        waiter = self.early.find(request)
        if waiter is None:
            return False
        self.early.forget(request)
        if waiter.missed:
            self.claims.let_go(waiter)
            return False
        self._by_request[request] = waiter
        self._trace("pull_claimed", request=request, started=waiter.started)
        return True

    def start(
        self,
        request: str,
        peer: str,
        groups: tuple[KeyGroup, ...],
        present: bytes = b"",
        also: tuple[str, ...] = (),
    ) -> None:
        """Have `groups` come, from `peer` (`host:port`) or `also`, unless they come already.

        The request waits (`pending`) until they have or will not; `present` are keys that
        are here and that it needs as well, packed. Allocates.
        """
        if request in self._by_request:
            return
        self._take_early()
        waiter = self._by_request[request] = self._waiter(request, peer, groups, present, also)
        self._fit(waiter)
        self._waits.want(waiter, waiter.first, waiter.end)
        if not waiter.spans:
            detail = "the tier is too small for any of it"
            self._meter.missed(peer, MissReason.NO_SPACE, detail)
            self._waits.count_cut(waiter)
            self._waits.settle(waiter)
        self.start_waiting()

    def pending(self, request: str) -> bool:
        """Whether the request should be asked about again later."""
        waiter = self._by_request.get(request)
        if waiter is None or waiter.settled:
            return False
        if time.monotonic() < waiter.deadline:
            return True
        detail = f"nothing within {self._deadline_s:g} s"
        self._waits.give_up(waiter, MissReason.TIMED_OUT, detail)
        return False

    def looked_up(self, request: str) -> None:
        """The request has seen its blocks; what it wants it pins by itself now."""
        waiter = self._by_request.get(request)
        if waiter is not None:
            self.claims.let_go(waiter)

    def adopted(self, request: str, key: bytes) -> bool:
        """Whether `key` came to this engine by a pull that this very request waited for."""
        waiter = self._by_request.get(request)
        if waiter is None or not waiter.brought:
            return False
        keys = self._split.get(request)
        if keys is None:
            size = self._ledger.key_size
            keys = self._split[request] = frozenset(
                part[at : at + size] for part in waiter.brought for at in range(0, len(part), size)
            )
        return key in keys

    def finished(self, request: str) -> None:
        """The request is over, wherever its pull is."""
        waiter = self._by_request.pop(request, None)
        self._split.pop(request, None)
        if waiter is not None:
            self._finish(waiter)

    # --- for the manager -------------------------------------------------------------

    def drain(self) -> None:
        """Take what the helpers have announced. Adopts, frees, never allocates."""
        self._take_early()
        if self.records.drain():
            for waiter in self.early.abandoned(time.monotonic()):
                self._finish(waiter)

    def start_waiting(self) -> None:
        """Send the pulls that wait their turn, in order, as far as there is room."""
        while any(self._try(pull) for pull in self.turns.firsts()):
            pass
        if not self.turns:
            self._restock()
        for pull in self.turns:
            self.claims.let_wait(pull)

    def cache_reset(self) -> None:
        """What open pulls bring is of the old content; what comes of it is refused by epoch."""
        for waiter in [*self._by_request.values(), *self.early.unclaimed()]:
            self.claims.let_go(waiter)
            waiter.brought.clear()
            if not waiter.settled:
                self._waits.give_up(waiter, MissReason.CACHE_RESET, "the cache was reset")
        self._split.clear()

    def idle(self) -> bool:
        return not (self.records.open or self.records.held or self.turns)

    # --- waiting ---------------------------------------------------------------------

    def _waiter(
        self,
        request: str,
        peer: str,
        groups: tuple[KeyGroup, ...],
        present: bytes,
        also: tuple[str, ...],
    ) -> Waiter:
        keys = groups[0].keys if len(groups) == 1 else b"".join(group.keys for group in groups)
        chain = len(groups) == 1 and not groups[0].window
        size = self._ledger.key_size
        first = len(present) // size if chain else 0
        end = first + len(keys) // size if chain else min(len(keys), 1)
        now = time.monotonic()
        return Waiter(
            request,
            peer,
            also,
            groups,
            keys,
            present,
            self._ledger.epoch,
            now,
            now + self._deadline_s,
            chain,
            first,
            end,
        )

    def _fit(self, waiter: Waiter) -> None:
        """Cut what can never be here at once to its leading tokens: a prefix serves."""
        size = self._ledger.key_size
        if waiter.chain:
            end = min(waiter.end, max(self.claims.tier, waiter.first))
            if end < waiter.end:
                waiter.cut = waiter.end - end
                waiter.groups, waiter.keys = waiter.part(waiter.first, end, size)
                waiter.end = end
            return
        before = sum(slots_of(group, size) for group in waiter.groups)
        waiter.groups = fit(waiter.groups, self.claims.most_large, size)
        waiter.keys = b"".join(group.keys for group in waiter.groups)
        waiter.end = min(len(waiter.keys), 1)
        waiter.cut = before - sum(slots_of(group, size) for group in waiter.groups)

    def _finish(self, waiter: Waiter) -> None:
        self.claims.let_go(waiter)
        if not waiter.settled:
            self._waits.give_up(waiter, MissReason.ABORTED, "the request ended")

    # --- one pull --------------------------------------------------------------------

    def _take_early(self) -> None:
        """Enter what the input thread has begun; from then on it is like any other pull."""
        for waiter, record in self.early.begun():
            gaps = [(waiter.first, waiter.end)]
            if record is not None:
                pull = record.pull
                gaps = [(waiter.first, pull.first), (pull.end, waiter.end)]
                # Beyond what the others may claim: the stock was kept free for it.
                self.claims.keep(pull, False)
                self.claims.take(pull, pull.count)
                self.records.enter(record)
            if waiter.settled:
                continue
            if waiter.epoch != self._ledger.epoch:
                self._waits.give_up(waiter, MissReason.CACHE_RESET, "the cache was reset")
            else:
                for start, stop in gaps:
                    self._waits.want_missing(waiter, start, stop)
        for record in self.early.unsent():
            self.records.unsent(record.number)

    def _try(self, pull: BookedPull) -> bool:
        """Give `pull`, whose turn it is, what room there is; False if it waits on."""
        if time.monotonic() >= pull.asker.deadline:
            detail = f"nothing within {self._deadline_s:g} s"
            self._waits.give_up(pull.asker, MissReason.TIMED_OUT, detail)
            return True
        link = self._supervisor.link
        if link is None:
            self.turns.remove(pull)
            self._waits.end(pull, MissReason.HELPERS_DOWN, "the helpers are not running")
            return True
        if not self._ledger.content:
            # The workers have yet to say what the weights are.
            return False
        stop = max(span.stop for span in pull.spans)
        wanted = stop - pull.given if pull.asker.chain else pull.count
        allocated = self.turns.room(pull, wanted)
        if allocated is None:
            if not self.turns.is_last(pull):
                return False
            self.turns.remove(pull)
            self._waits.end(pull, MissReason.NO_SPACE, "the rest of the tier is in use")
            return True
        slots, evicted = allocated
        self.claims.take(pull, len(slots) // SLOT_BYTES)
        if evicted:
            self._on_change(b"", evicted)
        self.turns.remove(pull)
        self.records.send(link, self._record(pull, slots, link))
        return True

    def _record(self, pull: BookedPull, slots: bytes, link: Link) -> Record:
        """Asks for what comes next of `pull`, as much as fills `slots`."""
        size, first = self._ledger.key_size, pull.given
        groups, keys = pull.groups, pull.keys
        if pull.asker.chain and len(slots) // SLOT_BYTES < len(keys) // size:
            at = (first - pull.first) * size
            keys = keys[at : at + len(slots) // SLOT_BYTES * size]
            groups = (KeyGroup(keys, groups[0].tokens_per_key, 0),)
        return Record(
            number=next(self._numbers),
            pull=pull,
            peer=pull.asker.peer,
            groups=groups,
            keys=keys,
            first=first,
            slots=slots,
            generation=link.generation,
            started=time.monotonic() if pull.blocks else pull.started,
            deadline=pull.asker.deadline,
            seen=bytearray(len(keys) // size),
            content=self._ledger.content,
        )

    def _restock(self) -> None:
        """Only what is not claimed: requests that wait for room come first."""
        wanted = min(self.early.missing(), self.claims.most - self.claims.small)
        if wanted > 0:
            allocated = self._ledger.allocate(wanted, LANDING)
            if allocated is not None:
                slots, evicted = allocated
                self.early.restock(slots)
                if evicted:
                    self._on_change(b"", evicted)

    # --- what comes, and what does not -----------------------------------------------

    def part_came(self, record: Record, slots: bytes, keys: bytes) -> None:
        """Make the blocks READY, pinned while requests wait for them."""
        pull = record.pull
        waiters = list(dict.fromkeys(span.waiter for span in pull.spans))
        published, stored = self.records.publish(record, slots, keys, bool(waiters))
        self.claims.hold(pull, published, *waiters)
        pull.blocks += len(slots) // SLOT_BYTES
        for waiter in waiters:
            waiter.brought.append(keys)
        if pull.asker.chain:
            gap = record.seen.find(0)
            pull.given = record.first + (len(record.seen) if gap < 0 else gap)
        if stored:
            self._on_change(stored, b"")
        self._waits.release_served(pull)

    def record_ended(self, record: Record, reason: MissReason | None, detail: str) -> None:
        """Go on with the rest of its pull, or end that."""
        pull = record.pull
        if not pull.asker.chain and pull.blocks:
            pull.given = pull.end
            self._waits.release_served(pull)
        if reason is not None or pull.given < record.first + len(record.seen):
            self._waits.end(pull, reason or MissReason.NOT_HELD, detail)
        elif not pull.spans:
            self._waits.end(pull, MissReason.ABORTED, "nobody waits for the rest")
        else:
            if pull.asker.settled:
                pull.asker = pull.spans[0].waiter
            self.turns.add_first(pull)

    def look_again(self) -> None:
        self._take_early()
