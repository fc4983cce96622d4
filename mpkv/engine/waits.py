"""Which request waits for which pulls, and what becomes of it when they end."""

import time
from collections.abc import Callable

from mpkv.engine.booked_pull import BookedPull, PullMeter, Record, Span, Waiter
from mpkv.engine.claims import Claims
from mpkv.engine.coming import Coming
from mpkv.engine.early import EarlyPulls
from mpkv.engine.fit import slots_of
from mpkv.engine.turns import Turns
from mpkv.memory import Ledger
from mpkv.messages import MissReason
from mpkv.trace import Trace


class Waits:
    """Joins waiters to what is on its way, and has them ask for what is not.

    A pull that ends ends here, exactly once, and its misses are counted.
    """

    def __init__(
        self,
        ledger: Ledger,
        meter: PullMeter,
        claims: Claims,
        coming: Coming,
        turns: Turns,
        early: EarlyPulls,
        cancel: Callable[[Record], None],
        trace: Trace,
    ) -> None:
        self._ledger = ledger
        self._meter = meter
        self._claims = claims
        self._coming = coming
        self._turns = turns
        self._early = early
        self._cancel = cancel
        self._trace = trace

    # --- a request -------------------------------------------------------------------

    def want(self, waiter: Waiter, at: int, stop: int, again: bool = False) -> None:
        """Wait for what is on its way from `at` to `stop`, and ask for the rest of it."""
        while at < stop:
            pull, upto = self._coming.find(waiter, at, stop)
            if pull is None:
                pull = self._ask(waiter, at, upto, again)
            self._join(waiter, pull, at, upto)
            at = upto

    def _ask(self, waiter: Waiter, at: int, stop: int, again: bool) -> BookedPull:
        size = self._ledger.key_size
        groups, keys = waiter.part(at, stop, size)
        count = sum(slots_of(group, size) for group in groups)
        large, now = self._turns.is_large(count), time.monotonic()
        pull = BookedPull(waiter, groups, keys, at, stop, count, now, large, again)
        self._coming.add(pull)
        self._turns.add(pull)
        if stop == waiter.end:
            self.count_cut(waiter)
        return pull

    def count_cut(self, waiter: Waiter) -> None:
        if waiter.cut:
            detail = "more than the tier can hold at once"
            self._meter.not_given(waiter.peer, MissReason.NO_SPACE, waiter.cut, detail)
            waiter.cut = 0

    def _join(self, waiter: Waiter, pull: BookedPull, start: int, stop: int) -> None:
        span = Span(waiter, pull, start, stop)
        waiter.spans.append(span)
        pull.spans.append(span)
        self._claims.share(pull, waiter)

    def settle(self, waiter: Waiter) -> None:
        """The request waits no longer; what came of what it wanted is here."""
        waiter.settled = True
        waiter.missed = not waiter.brought and waiter.end == waiter.first
        # What nobody has claimed cost no request anything: it pulls once more.
        if not waiter.missed or self._early.find(waiter.request) is not waiter:
            self._meter.lookup_ended(time.monotonic() - waiter.started)
        if waiter.missed:
            self._trace("pull_missed", request=waiter.request)

    def give_up(self, waiter: Waiter, reason: MissReason, detail: str) -> None:
        """Have the request wait no longer, before its pulls are over."""
        if not waiter.brought:
            waiter.end = waiter.first
        self.settle(waiter)
        for span in waiter.spans[:]:
            self._leave(span, reason, detail)

    def _leave(self, span: Span, reason: MissReason, detail: str) -> None:
        """Its waiter gave up; the pull goes on for others, if there are any."""
        waiter, pull = span.waiter, span.pull
        if span not in waiter.spans:
            # Its pull has ended with another one of them.
            return
        waiter.spans.remove(span)
        pull.spans.remove(span)
        others = [other.waiter for other in pull.spans if other.waiter is not waiter]
        if pull.record is None:
            if not others:
                self._end_waiting(pull, reason, detail)
            elif pull.asker is waiter:
                pull.asker = others[0]
        elif reason is MissReason.ABORTED:
            if not others:
                self.judge(pull, reason, detail)
                self._cancel(pull.record)
        elif pull.asker is waiter:
            self.judge(pull, reason, detail)

    def _end_waiting(self, pull: BookedPull, reason: MissReason, detail: str) -> None:
        """End a pull that waits for room."""
        if reason is MissReason.TIMED_OUT and pull.waited:
            waited = pull.asker.deadline - pull.asker.started
            reason, detail = MissReason.NO_SPACE, f"no room within {waited:g} s"
        self._turns.remove(pull)
        self.end(pull, reason, detail)

    # --- a pull ----------------------------------------------------------------------

    def release_served(self, pull: BookedPull) -> None:
        """Who has got all that he hoped for of `pull` waits for it no longer."""
        for span in [span for span in pull.spans if span.stop <= pull.given]:
            pull.spans.remove(span)
            span.waiter.spans.remove(span)
            if not span.waiter.spans:
                self.settle(span.waiter)

    def end(self, pull: BookedPull, reason: MissReason, detail: str) -> None:
        """Nothing more will come; the first of those who still need it asks by himself."""
        pull.over = True
        if pull.count > pull.blocks:
            self.judge(pull, reason, detail)
            self._count_missing(pull, detail)
        self._coming.remove(pull)
        spans, pull.spans = pull.spans, []
        for span in spans:
            span.waiter.spans.remove(span)
        for span in spans:
            if not span.waiter.settled:
                self._go_on(span, reason)

    def _go_on(self, span: Span, reason: MissReason) -> None:
        waiter, pull = span.waiter, span.pull
        at = max(span.start, pull.given)
        same = waiter.asks_of(pull)
        if (
            waiter is pull.asker
            or waiter.epoch != self._ledger.epoch
            # What the node says to one it says to all, and what it fails for two.
            or (same and (reason is MissReason.NOT_HELD or pull.again))
        ):
            waiter.end = min(waiter.end, at)
            for other in [other for other in waiter.spans if other.start >= at]:
                self._leave(other, MissReason.ABORTED, "what it was to follow will not come")
        else:
            self.want_missing(waiter, at, min(span.stop, waiter.end), again=same)
        if not waiter.spans and not waiter.settled:
            self.settle(waiter)

    def want_missing(self, waiter: Waiter, at: int, stop: int, again: bool = False) -> None:
        """As `want`, but what has come meanwhile is here."""
        if waiter.chain and at < stop:
            _, keys = waiter.part(at, stop, self._ledger.key_size)
            at += self._ledger.lookup_prefix(keys)
        self.want(waiter, at, stop, again)
        if not waiter.spans and not waiter.settled:
            self.settle(waiter)

    def judge(self, pull: BookedPull, reason: MissReason, detail: str) -> None:
        """It counts as failed, and nobody may wait for it any more who does not yet."""
        if pull.judged is None:
            pull.judged = reason
            self._coming.remove(pull)
            if not pull.blocks and not self._unclaimed(pull):
                self._meter.missed(pull.asker.peer, reason, detail)

    def _count_missing(self, pull: BookedPull, detail: str) -> None:
        reason = pull.judged
        if reason is not None and (pull.blocks or not self._unclaimed(pull)):
            missing = pull.count - pull.blocks
            self._meter.not_given(pull.asker.peer, reason, missing, detail)

    def _unclaimed(self, pull: BookedPull) -> bool:
        """Whether its request has not come: what it misses it asks for again."""
        return self._early.find(pull.asker.request) is pull.asker
