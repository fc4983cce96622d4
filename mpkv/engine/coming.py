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
        it brings what the waiter wants."""
        key = self._keys(waiter.keys, waiter.first, at, at + 1)
        # One key of each pull is compared, and only of the one that has it the others.
        for pull in list(self._pulls):
            if pull.asker.epoch != waiter.epoch or not pull.given <= at < pull.end:
                continue
            if not waiter.chain:
                if pull.groups == waiter.groups:
                    return pull, stop
            elif pull.asker.chain and self._keys(pull.keys, pull.first, at, at + 1) == key:
                return pull, self._reach(pull, waiter, at, min(stop, pull.end))
        return None, at

    def reach(self, waiter: Waiter) -> int:
        """Until where what the waiter wants is on its way, without a gap."""
        at = waiter.first
        while at < waiter.end:
            pull, upto = self.find(waiter, at, waiter.end)
            if pull is None:
                break
            at = upto
        return at

    def _reach(self, pull: BookedPull, waiter: Waiter, at: int, stop: int) -> int:
        """The first position from `at` on where the two differ; at `at` they are equal."""

        def equal(until: int) -> bool:
            theirs = self._keys(pull.keys, pull.first, at, until)
            return theirs == self._keys(waiter.keys, waiter.first, at, until)

        if equal(stop):
            return stop
        low, high = at + 1, stop
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if equal(middle) else (low, middle)
        return low

    def _keys(self, keys: bytes, first: int, start: int, stop: int) -> bytes:
        return keys[(start - first) * self._key_size : (stop - first) * self._key_size]
