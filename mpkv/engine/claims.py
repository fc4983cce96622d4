"""What pulls hold of the tier: their slots, and blocks that their requests have not looked at.

Together they stay under a bound, so that requests that wait for pulls never fill the tier.
"""

from mpkv.engine.booked_pull import SLOT_BYTES, BookedPull
from mpkv.memory import Ledger

# Of the tier: what pulls in flight and pulled blocks not yet used may hold together.
CLAIM_SHARE = 4


class Claims:
    """At most `most` blocks, and what began early on top; all of it is the scheduler thread's."""

    def __init__(self, ledger: Ledger) -> None:
        self.most = max(ledger.blocks // CLAIM_SHARE, 1)
        self.taken = 0
        # What requests hold on to, packed.
        self.pins: dict[str, bytes] = {}
        self._ledger = ledger

    def fits(self, count: int) -> bool:
        return self.taken + count <= self.most

    def take(self, count: int) -> None:
        self.taken += count

    def give_back(self, slots: bytes) -> None:
        self.taken -= len(slots) // SLOT_BYTES

    def pin(self, request: str, slots: bytes) -> None:
        """Claim blocks that are pinned already, for `request` until it lets go."""
        self.pins[request] = self.pins.get(request, b"") + slots
        self.take(len(slots) // SLOT_BYTES)

    def keep(self, pull: BookedPull) -> None:
        """Pin what is here, so that the pull does not evict what it is to follow.

        Only at the pull's turn, and beside it: a request that held a claim while it waits
        for room would wait for itself, or for another that does the same.
        """
        count = len(pull.present) // self._ledger.key_size
        if count and self.fits(count + pull.count):
            self.pin(pull.request, self._ledger.pin_many(pull.present))
        elif count:
            self._ledger.touch_many(pull.present)

    def let_go(self, request: str) -> None:
        pins = self.pins.pop(request, b"")
        if pins:
            self._ledger.unpin_many(pins)
            self.give_back(pins)

    def let_all_go(self) -> None:
        for request in list(self.pins):
            self.let_go(request)
