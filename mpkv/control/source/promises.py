"""The source's side of checking: the checksums that it owes to those who asked for them.

Blocks are hashed from the grant on, while the peer READs them. Should the peer be done
first, its Confirm waits here, as long as its lease lasts.
"""

import queue
from collections.abc import Iterator
from dataclasses import dataclass

from mpkv.cluster.settings import Integrity
from mpkv.control.checksums import Checksums, Job
from mpkv.control.network.wire import Ask, Confirm
from mpkv.control.source.leases import Lease

# Of all peers, those whose lease has ended but that the hashing thread has yet to drop included.
MAX_JOBS = 1024


@dataclass(slots=True, eq=False)
class Promise:
    lease: Lease
    job: Job
    # The Confirm that waits for the job, and where its answer goes.
    confirm: Confirm | None = None
    route: bytes = b""


class Promises:
    """At most one job for each lease; it is dropped with its lease."""

    def __init__(self, checksums: Checksums) -> None:
        self._checksums = checksums
        self._by_lease: dict[int, Promise] = {}
        self._by_job: dict[Job, Promise] = {}
        self._over: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._due: list[Promise] = []

    def room(self, ask: Ask) -> bool:
        """Whether what `ask` wants checked can be hashed."""
        self._take_over()
        return ask.integrity is Integrity.OFF or len(self._by_job) < MAX_JOBS

    def make(self, ask: Ask, lease: Lease, runs: list[tuple[int, int]], key_size: int) -> None:
        """Have the blocks of `lease`, which are those at `runs` of the keys in `ask`, hashed."""
        if ask.integrity is Integrity.OFF:
            return
        keys = b""
        if ask.integrity is Integrity.SAMPLED:
            # Not all that was asked for: what a peer makes us keep is bounded by its pins.
            asked = b"".join(group.keys for group in ask.groups)
            keys = b"".join(
                [asked[first * key_size : (first + count) * key_size] for first, count in runs]
            )
        job = Job(ask.integrity, lease.slots, keys, landed=False, over=self._over)
        self._by_lease[lease.number] = self._by_job[job] = Promise(lease, job)
        self._checksums.submit(job)

    def wait(self, peer: str, route: bytes, confirm: Confirm) -> bool:
        """Whether `confirm` has to wait; `due` hands it out."""
        promise = self._by_lease.get(confirm.lease)
        if promise is None or (promise.lease.peer, promise.lease.ask) != (peer, confirm.ask):
            return False
        if promise.job not in self._by_job:
            return False
        promise.confirm, promise.route = confirm, route
        return True

    def due(self) -> Iterator[tuple[str, bytes, Confirm]]:
        """Peer, route and Confirm of those that have waited long enough."""
        self._take_over()
        due, self._due = self._due, []
        for promise in due:
            if promise.confirm is not None and promise.lease.number in self._by_lease:
                yield promise.lease.peer, promise.route, promise.confirm

    def checksums(self, number: int) -> bytes | None:
        """What goes with the confirmation of a lease; None if it was to be made and is not."""
        promise = self._by_lease.get(number)
        return b"" if promise is None else promise.job.checksums

    def drop(self, lease: Lease) -> Promise | None:
        """The lease has ended: what was promised with it."""
        promise = self._by_lease.pop(lease.number, None)
        if promise is not None:
            promise.job.dropped = True
        return promise

    def _take_over(self) -> None:
        while not self._over.empty():
            self._due.append(self._by_job.pop(self._over.get()))
