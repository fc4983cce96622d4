"""How many asks are under way at each instance of a peer, and which pulls wait for a turn.

A source denies what goes beyond its bound of leases for one peer; a pull that waits here
instead is granted as soon as an earlier one ends. What was given up while the source could
not be told is remembered, so that its lease ends as soon as it can.
"""

from collections import Counter, deque
from collections.abc import Iterable

from mpkv.control.destination.open_pull import OpenPull, Step
from mpkv.control.network.wire import MAX_LEASES

MAX_INSTANCES = 64


class Turns:
    """A turn lasts from the ask to the end of its pull. Pulls wait in order; one that has
    stopped waiting meanwhile is passed over."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[OpenPull]] = {}
        # How many turns have been given back and not offered to those that wait.
        self._free: Counter[str] = Counter()
        self._abandoned: dict[str, deque[int]] = {}

    def take(self, pull: OpenPull, instance: str) -> bool:
        """False if `pull` has to wait; `next` hands it out in its turn."""
        if self._taken[instance] >= MAX_LEASES or instance in self._waiting:
            pull.step = Step.QUEUED
            self._waiting.setdefault(instance, deque()).append(pull)
            return False
        self._give(pull, instance)
        return True

    def give_back(self, pull: OpenPull) -> None:
        instance = pull.part.asked_of
        if not instance:
            return
        self._return(pull)
        if instance in self._waiting:
            self._free[instance] += 1

    def wait_for_another(self, pull: OpenPull) -> bool:
        """The peer had no room for `pull`: the next turn that ends at it may make some. False
        if there is none; `pull` keeps its turn then."""
        instance = pull.part.asked_of
        if self._taken[instance] <= 1:
            return False
        self._return(pull)
        pull.step = Step.QUEUED
        self._waiting.setdefault(instance, deque()).appendleft(pull)
        return True

    def next(self) -> list[OpenPull]:
        """Pulls whose turn it is now; they have taken it."""
        found = []
        for instance, free in self._free.items():
            waiting = self._waiting[instance]
            while waiting and free:
                pull = waiting.popleft()
                if pull.step is Step.QUEUED and pull.session.instance == instance:
                    free -= 1
                    self._give(pull, instance)
                    found.append(pull)
            if not waiting:
                del self._waiting[instance]
        self._free.clear()
        return found

    def abandon(self, pull: OpenPull) -> None:
        """Its source cannot be told now that `pull` is given up."""
        if pull.part.asked_of not in self._abandoned and len(self._abandoned) >= MAX_INSTANCES:
            del self._abandoned[next(iter(self._abandoned))]
        self._abandoned.setdefault(pull.part.asked_of, deque(maxlen=MAX_LEASES)).append(
            pull.part.ask
        )

    def abandoned(self, instance: str) -> Iterable[int]:
        """The asks that `instance` is still to be told of; it is told now."""
        return self._abandoned.pop(instance, ())

    def _give(self, pull: OpenPull, instance: str) -> None:
        pull.part.asked_of = instance
        self._taken[instance] += 1

    def _return(self, pull: OpenPull) -> None:
        self._taken[pull.part.asked_of] -= 1
        if not self._taken[pull.part.asked_of]:
            del self._taken[pull.part.asked_of]
        pull.part.asked_of = ""
