from typing import Self, final

from typing_extensions import Buffer

LANDING: int
FILLING: int
PUBLISHED: int
STALE: int
DUPLICATE: int
CROWDED: int
MISS: int
MISS_SLOT: int
PINS_MAX: int
COUNTERS_PER_ROLE: int
LAYOUT: dict[str, int]

def spawn(argv: list[bytes], environment: list[bytes], fds: list[int], null_fd: int, /) -> int:
    """Start `argv[0]` with `fds` under their own numbers and `null_fd` as its input; its pid.

    The kernel kills it when the calling thread ends, whatever state it is in. Raises OSError.
    """

def block_ids(slots: Buffer, /) -> bytes:
    """The block ids (u32) of slots (u64), both packed."""

@final
class Producer:
    """The writing side of a ring."""

    def push(self, record: Buffer, /) -> bool:
        """Append a record. False when the ring has no room for it; never waits.

        ValueError when it is longer than the ring's `max_record`.
        """

@final
class Consumer:
    """The reading side of a ring."""

    def pop(self) -> bytes | None:
        """The next record, or None when the ring is empty; never waits.

        SegmentRefused when what the producer wrote is impossible.
        """

    def prepare_sleep(self) -> bool:
        """Ask the producer to signal its next push.

        True: the ring is empty, now poll the eventfd with a timeout. False: there is a
        record after all, and nothing was asked.
        """

    def finish_sleep(self) -> None:
        """Pushes need not signal any more."""

class RingCore:
    @property
    def fd(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def max_record(self) -> int: ...
    @staticmethod
    def size_of(capacity: int, /) -> int: ...
    @classmethod
    def format_fd(cls, fd: int, capacity: int, /) -> Self: ...
    @classmethod
    def open_fd(cls, fd: int, /) -> Self: ...
    def producer(self, wake_fd: int, /) -> Producer:
        """Claim the writing side, for the life of the ring; RingClaimed if it is taken.

        `wake_fd` is the consumer's eventfd; -1 never signals.
        """

    def consumer(self, wake_fd: int, /) -> Consumer:
        """Claim the reading side, for the life of the ring; RingClaimed if it is taken.

        `wake_fd` is the eventfd this process polls; -1 for one that never sleeps.
        """

    def close(self) -> None:
        """Unmap the ring and close its descriptor; its sides are of no use any more."""

class LedgerCore:
    @property
    def fd(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @property
    def key_size(self) -> int: ...
    @property
    def epoch(self) -> int:
        """How often the cache was reset: blocks pulled under an older count are not to be
        believed."""

    @property
    def content(self) -> bytes:
        """What weights the blocks of this epoch are of, 16 bytes; empty while not known."""

    @property
    def published(self) -> int:
        """How often a block has become READY; whoever sees a count finds its blocks."""

    @staticmethod
    def size_of(blocks: int, key_size: int, /) -> int: ...
    @classmethod
    def format_fd(
        cls, fd: int, blocks: int, key_size: int, seed: int, counters: int, /
    ) -> Self: ...
    @classmethod
    def open_fd(cls, fd: int, counters: int, /) -> Self: ...
    def close(self) -> None:
        """Unmap the ledger and close its descriptor."""

    def find(self, key: Buffer, /) -> int:
        """The block that is READY under this key, or -1. Nothing keeps it so."""

    def lookup_prefix(self, keys: Buffer, /) -> int:
        """How many of the leading keys are READY."""

    def contains_many(self, keys: Buffer, /) -> bytes:
        """One byte per key: 1 if it is READY, 0 if not."""

    def pin_many(self, keys: Buffer, /) -> bytes:
        """Pin each READY key; a slot (u64) per key, MISS_SLOT for a miss.

        A pin that its count has no room for is a miss.
        """

    def pin_prefix(self, keys: Buffer, /) -> bytes:
        """Pin the leading keys up to the first miss; their slots (u64)."""

    def pin_slots(self, slots: Buffer, /) -> bytes:
        """Pin blocks that are READY in these very slots; a byte per slot, 1 if pinned."""

    def keys_of(self, slots: Buffer, /) -> bytes:
        """The keys of slots that the caller has pinned, concatenated."""

    def ready_besides(self, generations: Buffer, /) -> bytes:
        """The slots (u64) of READY blocks whose generation is not the one (u32) listed for
        their block. Nothing keeps them so."""

    def unpin_many(self, slots: Buffer, /) -> int:
        """Give back one pin per slot; how many this owner still held."""

    def touch_many(self, keys: Buffer, /) -> None:
        """Mark the READY ones among the keys as visited."""

    def counts(self) -> dict[str, int]:
        """Blocks by state and pins by owner, each word read at its own moment."""

    def allocate(self, count: int, state: int, owner: int = 0) -> tuple[bytes, bytes] | None:
        """Take `count` blocks into LANDING or FILLING: (slots, evicted keys).

        All or none: None when free blocks and evictable ones together are too few. `owner`,
        not 0, is whose they are: blocks that it has stored are not evicted for it.
        """

    def publish(self, slots: Buffer, keys: Buffer, pin: bool, copies: bool = False) -> bytes:
        """Make blocks READY under their keys, those of a prompt in its order; a byte per slot.
        `copies` of a peer's blocks are the first to be evicted until they are used twice.

        PUBLISHED: done, with an engine pin if `pin`. STALE: the slot is no longer one
        being written. DUPLICATE: the key is READY elsewhere, the slot was freed, nothing
        was pinned. CROWDED: the index has no room near the key, the slot was freed.
        """

    def free(self, slots: Buffer, /) -> int:
        """Give slots back; how many were still good. A pinned READY block drains first."""

    def drop_ready(self) -> int:
        """Forget every READY block; how many. Pinned ones drain first."""

    def reclaim(self) -> int:
        """Free the draining blocks that nobody pins any more; how many."""

    def zero_control_pins(self) -> int:
        """Take back all control pins; how many. Only when the control plane is dead.

        The one change that another thread than the engine's may make.
        """

    def set_epoch(self, epoch: int, /) -> None: ...
    def set_content(self, content: Buffer, /) -> None:
        """16 bytes, or none for "not known", as before the epoch changes."""

    def counter_add(self, role: int, position: int, n: int, /) -> None: ...
    def counter_read(self, role: int, position: int, /) -> int: ...
