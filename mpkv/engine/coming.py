"""What is on its way to this engine, so that nobody asks for it twice."""

from mpkv.engine.booked_pull import BookedPull, Waiter


class Coming:
    """Pulls that are not over, in the order in which they began.

    Two threads may add and look, only the scheduler's removes: each step is one operation on a
    dict, and those are atomic under the GIL. Two threads that add the same at the same moment
    may miss each other; then it comes twice.
    """

    def __init__(self, key_size: int) -> None:
        self._key_size = key_size
        self._pulls: dict[BookedPull, None] = {}

    def __len__(self) -> int:
        return len(self._pulls)

    def add(self, pull: BookedPull) -> None:
        self._pulls[pull] = None

    def remove(self, pull: BookedPull) -> None:
        self._pulls.pop(pull, None)

    def find(self, waiter: Waiter, at: int, stop: int) -> tuple[BookedPull | None, int]:
        """The first pull that brings the waiter's key at `at`, and until where, `stop` at most,
        it brings what the waiter wants; or nobody, and until where nobody does."""
        nobody = stop
        # One key of each pull is compared, and only of the one that has it the others.
        for pull in list(self._pulls):
            begin = max(at, pull.given)
            if pull.asker.epoch != waiter.epoch or begin >= min(nobody, pull.end):
                continue
            if not waiter.chain:
                if pull.groups == waiter.groups:
                    return pull, stop
            elif pull.asker.chain and self._equal(pull, waiter, begin, begin + 1):
                if begin == at:
                    return pull, self._reach(pull, waiter, at, min(stop, pull.end))
                nobody = begin
        return None, nobody

    def gap(self, waiter: Waiter) -> tuple[int, int]:
        """What the waiter wants first that is not on its way, from where to where."""
        at = waiter.first
        while at < waiter.end:
            pull, upto = self.find(waiter, at, waiter.end)
            if pull is None:
                return at, upto
            at = upto
        return at, at

    def _reach(self, pull: BookedPull, waiter: Waiter, at: int, stop: int) -> int:
        """The first position from `at` on where the two differ; at `at` they are equal."""
        if self._equal(pull, waiter, at, stop):
            return stop
        low, high = at + 1, stop
        while high - low > 1:
            middle = (low + high) // 2
            equal = self._equal(pull, waiter, at, middle)
            low, high = (middle, high) if equal else (low, middle)
        return low

    def _equal(self, pull: BookedPull, waiter: Waiter, start: int, stop: int) -> bool:
        size, theirs, ours = self._key_size, pull.first, waiter.first
        return (
            pull.keys[(start - theirs) * size : (stop - theirs) * size]
            == waiter.keys[(start - ours) * size : (stop - ours) * size]
        )
