"""When a peer is gone that pulls from here, so that what it holds does not wait for its leases.

Most that go close their connections; libzmq says that one has ended, not whose. A peer whose
connections have all ended gets a moment to be back, as after a cut in the network, in the same
life. One whose host vanished says nothing more.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

# Peers ping every second.
SILENCE_S = 4.0
# Longer than it takes to connect again, and than a living peer goes without a ping.
GRACE_S = 1.2
# Connections that end together are looked at once, when libzmq has parted with them.
SETTLE_S = 0.1
LOOKS_PER_TURN = 32


@dataclass(slots=True, eq=False)
class Inbound:
    """One life of one peer; `routes` in the order of their Hellos."""

    instance: str
    node: str
    address: str
    heard_at: float
    routes: list[bytes] = field(default_factory=list)


class Presence:
    """Tells who of `peers` is gone. They are ordered by when each was last heard."""

    def __init__(
        self,
        peers: OrderedDict[str, Inbound],
        holders: Callable[[], Iterable[str]],
        is_open: Callable[[bytes], bool],
    ) -> None:
        """`holders()`: the instances that hold leases; the others can wait for the silence."""
        self._peers = peers
        self._holders = holders
        self._is_open = is_open
        self._look_at = math.inf
        self._to_look: deque[str] = deque()
        # Those without a connection, and since when.
        self._absent: dict[str, float] = {}
        self._looked_at = 0.0

    def connection_ended(self, now: float) -> None:
        """Some connection of somebody is no more."""
        self._look_at = min(self._look_at, now + SETTLE_S)

    def is_connected(self, peer: Inbound) -> bool:
        return any(self._is_open(route) for route in peer.routes)

    def gone(self, now: float) -> list[Inbound]:
        """Who is gone by now; the caller forgets them."""
        if now - self._looked_at > SILENCE_S / 2:
            # We were stopped; what peers said meanwhile is still unread.
            for peer in self._peers.values():
                peer.heard_at = max(peer.heard_at, now - SILENCE_S / 2)
        self._looked_at = now
        self._look(now)
        gone = []
        for instance, since in list(self._absent.items()):
            absent = self._peers[instance]
            if self._return_of(absent, since) <= now:
                del self._absent[instance]
                if not self.is_connected(absent):
                    gone.append(absent)
        for peer in self._peers.values():
            if now - peer.heard_at < SILENCE_S:
                break
            if peer not in gone:
                gone.append(peer)
        return gone

    def due(self, now: float) -> float:
        """When to ask again at the latest."""
        if self._to_look:
            return now
        longest_silent = next(iter(self._peers.values()), None)
        silent = math.inf if longest_silent is None else longest_silent.heard_at + SILENCE_S
        return min(self._look_at, silent, *self._graces())

    def forget(self, peer: Inbound) -> None:
        self._absent.pop(peer.instance, None)

    def _look(self, now: float) -> None:
        if now >= self._look_at and not self._to_look:
            self._look_at = math.inf
            self._to_look.extend(self._holders())
        for _ in range(min(LOOKS_PER_TURN, len(self._to_look))):
            holder = self._peers.get(self._to_look.popleft())
            if holder is not None and not self.is_connected(holder):
                self._absent.setdefault(holder.instance, now)

    def _graces(self) -> list[float]:
        return [
            self._return_of(self._peers[instance], since)
            for instance, since in self._absent.items()
        ]

    def _return_of(self, peer: Inbound, since: float) -> float:
        """Until when it may be back. What it had sent before is heard after its end, too."""
        return max(since, peer.heard_at) + GRACE_S
