"""Pulls whose source has no room for them now, and when each asks again."""

import heapq
from collections.abc import Iterator

from mpkv.control.destination.open_pull import OpenPull, Step

# A READ of others takes some milliseconds; then there is room.
FIRST_WAIT_S = 0.004
LONGEST_WAIT_S = 0.1


class Rooms:
    """Each waits twice as long as the last time, up to a bound; its deadline ends it."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, OpenPull]] = []

    def wait(self, pull: OpenPull, now: float) -> None:
        pull.step = Step.ROOM
        wait = min(FIRST_WAIT_S * 2**pull.waited_for_room, LONGEST_WAIT_S)
        pull.waited_for_room = min(pull.waited_for_room + 1, 10)
        heapq.heappush(self._due, (now + wait, pull.wanted.pull, pull))

    def over(self, now: float) -> Iterator[OpenPull]:
        """Those that may ask again."""
        while self._due and self._due[0][0] <= now:
            pull = heapq.heappop(self._due)[2]
            if pull.step is Step.ROOM:
                yield pull

    def next_due(self) -> float | None:
        return self._due[0][0] if self._due else None
