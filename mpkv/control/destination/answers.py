"""What the engine, the counters and the trace hear of a pull."""

import logging
from collections.abc import Callable

from mpkv.control.destination.open_pull import SLOT, OpenPull
from mpkv.control.destination.session import Failure
from mpkv.control.network.wire import MAX_DETAIL, Denial, Denied, printable
from mpkv.memory import Counters
from mpkv.messages import MissReason, Pull, Pulled, PullFailed, SlotsReturned, ToEngine
from mpkv.trace import Trace

log = logging.getLogger("mpkv.control")

_MISS_BY_DENIAL = {
    Denial.UNKNOWN_SESSION: MissReason.PEER_DOWN,
    Denial.CONTENT: MissReason.CONTENT,
    Denial.TARGET_DOWN: MissReason.PEER_DOWN,
    Denial.QUOTA: MissReason.QUEUE_FULL,
    Denial.MALFORMED: MissReason.REFUSED,
}


def why_denied(denied: Denied, peer: str) -> Failure:
    """What a source's denial means to the engine."""
    return Failure(_MISS_BY_DENIAL[denied.reason], f"{peer} denies it: {printable(denied.detail)}")


class Answers:
    """Speaks to the engine by `to_engine`."""

    def __init__(
        self, to_engine: Callable[[ToEngine], None], counters: Counters, trace: Trace
    ) -> None:
        self._to_engine = to_engine
        self._counters = counters
        self._trace = trace

    def started(self, pull: Pull) -> None:
        self._counters.add("pulls_started")
        self._trace("pull_start", pull=pull.pull, request=pull.request, peer=pull.peer)

    def traced(self, event: str, pull: OpenPull) -> None:
        self._trace(
            event,
            pull=pull.wanted.pull,
            request=pull.wanted.request,
            blocks=len(pull.part.slots) // SLOT,
        )

    def pulled(self, pull: OpenPull, now: float, missing: MissReason | None) -> None:
        """The last part of `pull` has come; `missing` is why that was not all."""
        self._counters.add("pulls_done")
        self._part(pull, now, more=False, missing=missing)

    def part_pulled(self, pull: OpenPull, now: float) -> None:
        """A part has come, and others may."""
        self._part(pull, now, more=True, missing=None)

    def _part(self, pull: OpenPull, now: float, *, more: bool, missing: MissReason | None) -> None:
        part = pull.part
        self._counters.add("blocks_pulled", len(part.slots) // SLOT)
        self.traced("confirmed", pull)
        times = (part.granted_at, part.read_at, now)
        self._to_engine(Pulled(pull.wanted.pull, part.indexes, part.slots, *times, more, missing))

    def failed(self, pull: Pull, why: Failure, *, slots_held: bool) -> None:
        self._counters.add(f"missed_{why.reason.value}")
        self._trace(
            "pull_failed",
            pull=pull.pull,
            request=pull.request,
            reason=why.reason.value,
            detail=why.detail,
        )
        log.debug("pull %d from %s: %s, %s", pull.pull, pull.peer, why.reason.value, why.detail)
        detail = why.detail[:MAX_DETAIL]
        self._to_engine(PullFailed(pull.pull, why.reason, detail, slots_held))

    def returned(self, pull: int) -> None:
        """The slots of a failed pull may be used again."""
        self._to_engine(SlotsReturned(pull))
