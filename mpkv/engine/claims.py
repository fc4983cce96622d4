"""What pulls hold of the tier: their slots, and blocks that their requests have not looked at.

All that is claimed is pinned or landing, so pulls never evict what others have pulled and
not used. Small pulls share a quarter of the tier, in order: each gets all it wants at once, and
none of them waits for a large one. Large pulls share what is left beside that and an eighth
for the engine's own stores. Of them the first that does not fit takes what there is, goes on
in parts, and alone waits while it holds something: whom it waits for holds all he wants and
ends by himself, so nobody waits in a circle. When it is the only one with a claim it may take
the rest of the tier too.
"""

from mpkv.engine.booked_pull import SLOT_BYTES, BookedPull, Hold, Waiter
from mpkv.memory import Ledger

# Of the tier: what small pulls may hold together, what large ones leave to stores beside that,
# and the least that is worth a record of its own.
SMALL_SHARE = 4
STORE_SHARE = 8
LEAST_SHARE = 16


class Claims:
    """How many blocks may be claimed, and are; all of it is the scheduler thread's. What began
    early comes on top: `stock` slots are kept free for it."""

    def __init__(self, ledger: Ledger, stock: int) -> None:
        blocks = ledger.blocks
        # What one pull could ever have.
        self.tier = blocks - stock
        self.most = max(blocks // SMALL_SHARE, 1)
        self.most_large = max(self.tier - self.most - blocks // STORE_SHARE, 1)
        self.least = max(blocks // LEAST_SHARE, 1)
        self.small = 0
        self.large = 0
        self._ledger = ledger

    @property
    def taken(self) -> int:
        return self.small + self.large

    def room(self, pull: BookedPull, small_wait: bool) -> int:
        """How many blocks `pull` may claim now."""
        if not pull.large:
            return self.most - self.small
        if pull.blocks and not small_wait and self.is_alone(pull):
            # Its rest. Not at its start: what comes meanwhile and is small should pass.
            return self.tier - self.taken
        return self.most_large - self.large

    def is_alone(self, pull: BookedPull) -> bool:
        """Whether nobody claims anything but who asks by `pull`, which waits for room."""
        held = sum(len(hold.slots) for hold in pull.asker.holds)
        return held // SLOT_BYTES == self.taken

    def available(self) -> int:
        """How many blocks are free or may be evicted, at least."""
        counts = self._ledger.counts()
        pins = counts["engine_pins"] + counts["control_pins"]
        return counts["free"] + max(counts["ready"] - pins, 0)

    def take(self, pull: BookedPull, count: int) -> None:
        if pull.large:
            self.large += count
        else:
            self.small += count

    def give_back(self, pull: BookedPull, slots: bytes) -> None:
        self.take(pull, -(len(slots) // SLOT_BYTES))

    def hold(self, pull: BookedPull, slots: bytes, *waiters: Waiter) -> None:
        """Claim blocks that are pinned already until all `waiters` have let go. Who joins
        the pull later shares them."""
        if slots and waiters:
            hold = Hold(slots, pull)
            self.take(pull, len(slots) // SLOT_BYTES)
            pull.holds.append(hold)
            for waiter in waiters:
                self._share(hold, waiter)

    def share(self, pull: BookedPull, waiter: Waiter) -> None:
        """Have `waiter` hold what the pull has brought until now, as others do."""
        for hold in pull.holds:
            if hold.users and hold not in waiter.holds:
                self._share(hold, waiter)

    def keep(self, pull: BookedPull, small_wait: bool) -> None:
        """Pin what is here, so that the pull does not evict what it is to follow.

        Only at the pull's turn, and beside it: a request that held a claim while it waits
        for room would wait for itself, or for another that does the same.
        """
        asker = pull.asker
        if asker.kept or not (asker.present or asker.first < pull.first):
            return
        size = self._ledger.key_size
        here = asker.present
        if asker.chain:
            here += asker.keys[: (pull.first - asker.first) * size]
        # What it holds with others is of these, and to be counted once.
        self.let_go(asker)
        beside = min(pull.count, self.least) if pull.large and asker.chain else pull.count
        if len(here) // size + beside <= self.room(pull, small_wait):
            asker.kept = True
            waiters = dict.fromkeys(span.waiter for span in pull.spans)
            self.hold(pull, self._ledger.pin_prefix(here), *waiters)
        else:
            self._ledger.touch_many(here)

    def let_wait(self, pull: BookedPull) -> None:
        """Those who wait for a pull without room hold nothing that it may wait for itself: what
        its asker holds while it goes on in parts, or nothing at all."""
        pull.waited = True
        kept = pull.asker.holds if pull.blocks else []
        for waiter in [span.waiter for span in pull.spans if span.waiter.holds]:
            if not kept:
                self.let_go(waiter)
            elif waiter is not pull.asker:
                self._let_go_of(waiter, [hold for hold in waiter.holds if hold not in kept])

    def let_go(self, waiter: Waiter) -> None:
        self._let_go_of(waiter, waiter.holds[:])

    def _let_go_of(self, waiter: Waiter, holds: list[Hold]) -> None:
        waiter.kept = False
        for hold in holds:
            waiter.holds.remove(hold)
            hold.users -= 1
            if not hold.users:
                self._ledger.unpin_many(hold.slots)
                self.give_back(hold.pull, hold.slots)

    def _share(self, hold: Hold, waiter: Waiter) -> None:
        hold.users += 1
        waiter.holds.append(hold)
