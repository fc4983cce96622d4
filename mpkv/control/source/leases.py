"""What is pinned for whom, and until when.

Leases bound what a peer can keep from eviction; they are not what makes bytes good. That
is `confirm`, which answers whether every pin was held from the grant until now.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mpkv.control.network.wire import MAX_LEASE_MS, MAX_LEASES, Loss
from mpkv.memory import Counters

SLOT = 8
# Of the tier, what peers together leave for the engine's own stores; and what those that have
# something leave besides for one that has nothing yet.
SHARE_OF_STORES = 8
SHARE_OF_NEWCOMERS = 8
# A peer that was denied for want of room asks again sooner than this, if it still waits.
WAITS_S = 1.0
# How many ended leases keep the reason of their end.
REMEMBERED = 1024


class Pins(Protocol):
    """What leases need of the ledger."""

    @property
    def blocks(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def content(self) -> bytes: ...
    def unpin_many(self, slots: bytes) -> int: ...


@dataclass(slots=True, frozen=True)
class Lease:
    number: int
    peer: str
    ask: int
    slots: bytes
    epoch: int
    content: bytes
    expires: float


class Leases:
    """All leases of this life of the control plane; the sole holder of its pins."""

    def __init__(
        self,
        ledger: Pins,
        target_alive: Callable[[], bool],
        counters: Counters,
        ended: Callable[[Lease, Loss], None],
    ) -> None:
        """`ended(lease, loss)` hears of the end of every lease; UNKNOWN if its peer ended it."""
        self._ledger = ledger
        self._ended = ended
        self._target_alive = target_alive
        self._counters = counters
        self._epoch = ledger.epoch
        self._numbers = 0
        self._leases: dict[int, Lease] = {}
        self._by_peer: dict[str, dict[int, Lease]] = {}
        self._pins_by_peer: dict[str, int] = {}
        self._pins = 0
        # Peers that found no room, by when they last asked.
        self._waiting: OrderedDict[str, float] = OrderedDict()
        self._expiries: list[tuple[float, int]] = []
        self._lost: OrderedDict[int, Loss] = OrderedDict()

    def __len__(self) -> int:
        return len(self._leases)

    def room(self, peer: str, now: float) -> int:
        """How many more pins `peer` may have; 0 also when it has too many leases.

        Alone it may have all but what is left for stores and for a newcomer. Peers that have
        leases or wait for room share alike; who has more than a share keeps it until its leases
        end, but cannot have it again while others wait.
        """
        if len(self._by_peer.get(peer, ())) >= MAX_LEASES:
            return 0
        blocks, held = self._ledger.blocks, self._pins_by_peer.get(peer, 0)
        usable = blocks - blocks // SHARE_OF_STORES
        others = self._others(peer, now)
        if others and not held:
            return max(0, min(usable // (others + 1), usable - self._pins))
        usable -= blocks // SHARE_OF_NEWCOMERS
        share = usable // (others + 1)
        return max(0, min(share - held, usable - self._pins))

    def waits(self, peer: str, now: float) -> None:
        """There was no room for `peer`, which will ask again."""
        self._waiting[peer] = now
        self._waiting.move_to_end(peer)

    def holders(self) -> list[str]:
        """The peers that have leases."""
        return list(self._by_peer)

    def held(self, peer: str) -> int:
        """How many leases `peer` has."""
        return len(self._by_peer.get(peer, ()))

    def asked(self, peer: str, ask: int) -> bool:
        """Whether `ask` of `peer` has a lease."""
        return ask in self._by_peer.get(peer, ())

    def open(
        self,
        peer: str,
        ask: int,
        slots: bytes,
        epoch: int,
        content: bytes,
        lease_ms: int,
        now: float,
    ) -> Lease:
        """Take over pins that the caller has just made; `epoch` and `content` are of before."""
        self._numbers += 1
        expires = now + min(lease_ms, MAX_LEASE_MS) / 1000
        lease = Lease(self._numbers, peer, ask, slots, epoch, content, expires)
        self._leases[lease.number] = lease
        self._by_peer.setdefault(peer, {})[ask] = lease
        self._waiting.pop(peer, None)
        pins = len(slots) // SLOT
        self._pins += pins
        self._pins_by_peer[peer] = self._pins_by_peer.get(peer, 0) + pins
        heapq.heappush(self._expiries, (expires, lease.number))
        return lease

    def confirm(self, peer: str, ask: int, number: int, content: bytes, now: float) -> Loss | None:
        """End the lease; None if neither its blocks nor the weights have changed since the
        grant."""
        lease = self._leases.get(number)
        if lease is None or lease.peer != peer or lease.ask != ask:
            return self._lost.get(number, Loss.UNKNOWN)
        held = self._end(lease)
        if not held:
            return Loss.PINS_LOST
        if now >= lease.expires:
            return Loss.EXPIRED
        if lease.epoch != self._ledger.epoch:
            return Loss.EPOCH
        if not lease.content == content == self._ledger.content:
            return Loss.CONTENT
        if not self._target_alive():
            return Loss.TARGET_DOWN
        return None

    def release(self, peer: str, ask: int) -> bool:
        """The peer gave `ask` up. False if it has no lease."""
        lease = self._by_peer.get(peer, {}).get(ask)
        if lease is None:
            return False
        self._end(lease)
        return True

    def drop_peer(self, peer: str) -> None:
        """Nothing will come from this life of the peer any more."""
        self._waiting.pop(peer, None)
        for lease in list(self._by_peer.get(peer, {}).values()):
            self._end(lease)

    def expire(self, now: float) -> float | None:
        """End the leases whose time or content is over; return when the next one ends."""
        if self._ledger.epoch != self._epoch:
            self._epoch = self._ledger.epoch
            # Some may be as new as the epoch: asks come between a reset and this look.
            for lease in [held for held in self._leases.values() if held.epoch != self._epoch]:
                self._end(lease, Loss.EPOCH)
        while self._expiries:
            expires, number = self._expiries[0]
            expired = self._leases.get(number)
            if expired is not None:
                if now < expires:
                    return expires
                self._end(expired, Loss.EXPIRED)
                self._counters.add("leases_expired")
            heapq.heappop(self._expiries)
        return None

    def _others(self, peer: str, now: float) -> int:
        """How many peers besides `peer` have leases or wait for room."""
        while self._waiting and next(iter(self._waiting.values())) + WAITS_S <= now:
            self._waiting.popitem(last=False)
        waiting = sum(other not in self._by_peer for other in self._waiting if other != peer)
        return len(self._by_peer) - (peer in self._by_peer) + waiting

    def _end(self, lease: Lease, loss: Loss = Loss.UNKNOWN) -> bool:
        """Unpin; True if every pin was still held under its generation."""
        del self._leases[lease.number]
        of_peer = self._by_peer[lease.peer]
        del of_peer[lease.ask]
        pins = len(lease.slots) // SLOT
        self._pins -= pins
        self._pins_by_peer[lease.peer] -= pins
        if not of_peer:
            del self._by_peer[lease.peer], self._pins_by_peer[lease.peer]
        if loss is not Loss.UNKNOWN:
            self._lost[lease.number] = loss
            if len(self._lost) > REMEMBERED:
                self._lost.popitem(last=False)
        self._ended(lease, loss)
        return self._ledger.unpin_many(lease.slots) == pins
