"""Which pulls cannot even begin, whatever their peer would say."""

from mpkv.control.destination.initiators import Initiators
from mpkv.control.destination.open_pull import SLOT, Weights, outdated
from mpkv.control.destination.pulls import Pulls
from mpkv.control.destination.session import Failure
from mpkv.control.network.wire import check_groups
from mpkv.errors import WireRefused
from mpkv.messages import MissReason, Pull

# Bounds the answers that the engine's ring may have to take at once.
MAX_OPEN = 1024
# In a Pulled: an index and a slot for each block, and the rest.
ANSWER_BYTES_PER_SLOT = 12
ANSWER_OVERHEAD = 256
# `now` is when a turn of the loop began; what came since may have begun later.
LONGEST_TURN_S = 60.0


class Admission:
    """`longest_answer`: bytes of the longest record that the engine's ring takes."""

    def __init__(
        self,
        pulls: Pulls,
        initiators: Initiators,
        key_size: int,
        weights: Weights,
        longest_answer: int,
    ) -> None:
        self._pulls = pulls
        self._initiators = initiators
        self._key_size = key_size
        self._weights = weights
        self._longest_answer = longest_answer

    def hindrance(self, pull: Pull, now: float) -> Failure | None:
        """Why `pull` cannot begin; None if it may."""
        try:
            keys = check_groups(pull.groups, self._key_size)
        except WireRefused as error:
            return Failure(MissReason.REFUSED, f"the pull cannot be sent: {error}")
        slots = len(pull.slots) // SLOT
        if not pull.started < now + LONGEST_TURN_S:
            # Its deadline counts from there, and would be as impossible.
            return Failure(MissReason.REFUSED, f"it began at {pull.started}, now is {now}")
        if not now < pull.deadline:
            return Failure(MissReason.TIMED_OUT, "its deadline passed before it began")
        if (why := outdated(self._weights, pull)) is not None:
            return why
        if not keys:
            return Failure(MissReason.NOT_HELD, "it asks for no keys")
        if not slots:
            return Failure(MissReason.NO_SPACE, "it has no slots")
        if len(self._pulls) >= MAX_OPEN:
            return Failure(MissReason.QUEUE_FULL, f"{MAX_OPEN} pulls are open already")
        if ANSWER_BYTES_PER_SLOT * slots + ANSWER_OVERHEAD > self._longest_answer:
            return Failure(MissReason.QUEUE_FULL, f"the result for {slots} slots fits no record")
        if not self._initiators.expected(now):
            return Failure(MissReason.HELPERS_DOWN, "no initiator is ready to READ")
        return None
