"""The thread that makes checksums of blocks, in the tier as this process maps it.

It starts when it has something to do: at once if this engine keeps checksums of what it
publishes, else with the first job. What it knows is for this process alone, by block and
generation, so a block is hashed once however often it is pulled.
"""

import array
import logging
import mmap
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator

from mpkv.cluster.settings import Integrity
from mpkv.control.checksums import Job, checksum, chosen, is_sampled
from mpkv.errors import SegmentRefused
from mpkv.memory import Counters, Ledger, block_ids
from mpkv.messages import Tier

log = logging.getLogger("mpkv.control")

# How soon a block is hashed after its publication, if nobody asks for it before.
LOOK_S = 0.05
# Hashed in one go; so much is pinned at a time, and a job waits so long for the others.
BATCH_BYTES = 4 << 20
# Small blocks are hashed with the GIL held, and the loop must not wait long for it.
SWITCH_S = 0.0005
CLOSE_S = 5.0
STACK_BYTES = 512 << 10

_Work = tuple[Job, Iterator[None]]


class Hashing:
    """`wake()` is called, on the thread, whenever a job is over."""

    def __init__(
        self,
        tier: Tier,
        ledger: Ledger,
        eager: Integrity,
        counters: Counters,
        wake: Callable[[], None],
    ) -> None:
        """`eager`: which blocks are hashed soon after their publication."""
        self._tier = tier
        self._ledger = ledger
        self._eager = eager
        self._counters = counters
        self._wake = wake
        self._submitted: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        if eager is not Integrity.OFF:
            self._start()

    def submit(self, job: Job) -> None:
        self._submitted.put(job)
        if self._thread is None:
            self._start()

    def close(self) -> None:
        """Stop hashing; jobs that are not over stay so."""
        if self._thread is not None:
            self._submitted.put(None)
            self._thread.join(CLOSE_S)

    def _start(self) -> None:
        sys.setswitchinterval(SWITCH_S)
        before = threading.stack_size(STACK_BYTES)
        try:
            thread = threading.Thread(target=self._run, name="hashing", daemon=True)
            thread.start()
            self._thread = thread
        finally:
            threading.stack_size(before)

    # --- the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        blocks: _Blocks | None = None
        try:
            blocks = _Blocks(self._tier, self._ledger, self._counters)
        except (OSError, MemoryError, SegmentRefused) as error:
            log.error("cannot map the tier, so no pull can be checked: %s", error)
        # What landed here, and what was granted to others: a flood of one does not delay the
        # other. Jobs of one kind are worked at in turns, so that no long one holds up a short.
        kinds: deque[deque[_Work]] = deque([deque(), deque()])
        landed, granted = kinds
        publications: Iterator[None] = iter(())
        busy = False
        while True:
            for job in self._arrived(wait=not busy):
                if job is None:
                    return
                work = iter(()) if blocks is None else blocks.work(job)
                (landed if job.landed else granted).append((job, work))
            busy = self._work_at_next(kinds)
            if not busy and blocks is not None and self._eager is not Integrity.OFF:
                busy = _goes_on(publications)
                if not busy:
                    publications = blocks.look(self._eager)
                    busy = _goes_on(publications)

    def _arrived(self, *, wait: bool) -> Iterator[Job | None]:
        try:
            if wait:
                yield self._submitted.get(timeout=None if self._eager is Integrity.OFF else LOOK_S)
            while True:
                yield self._submitted.get_nowait()
        except queue.Empty:
            return

    def _work_at_next(self, kinds: "deque[deque[_Work]]") -> bool:
        """Do a batch of the job whose turn it is; False if there is no job."""
        for _ in range(len(kinds)):
            kind = kinds[0]
            kinds.rotate()
            if kind:
                job, work = kind.popleft()
                if _goes_on(work):
                    kind.append((job, work))
                else:
                    job.over.put(job)
                    self._wake()
                return True
        return False


class _Blocks:
    """The tier's blocks, and what is known of them."""

    def __init__(self, tier: Tier, ledger: Ledger, counters: Counters) -> None:
        size = tier.blocks * tier.block_bytes
        found = os.fstat(tier.fd).st_size
        if found < size:
            raise SegmentRefused(f"the tier has {found} bytes, expected {size}")
        self._bytes = memoryview(mmap.mmap(tier.fd, size, prot=mmap.PROT_READ))
        self._block_bytes = tier.block_bytes
        self._batch = max(BATCH_BYTES // tier.block_bytes, 1)
        self._ledger = ledger
        self._counters = counters
        # By block: its checksum, the generation that this is of, and the last generation
        # that was looked at, whether it was hashed or not. No block has generation 0.
        self._checksums = array.array("Q", bytes(8 * tier.blocks))
        self._hashed = array.array("I", bytes(4 * tier.blocks))
        self._seen = array.array("I", bytes(4 * tier.blocks))
        self._published = 0

    def work(self, job: Job) -> Iterator[None]:
        """Do `job`, a batch at each turn."""
        if job.dropped:
            return
        slots = memoryview(job.slots).cast("Q")
        job.positions = chosen(job.integrity, job.keys, len(slots))
        wanted = array.array("Q", [slots[at] for at in job.positions])
        found = array.array("Q")
        for first in range(0, len(wanted), self._batch):
            batch = wanted[first : first + self._batch]
            unknown = array.array("Q", [slot for slot in batch if not self._knows(slot)])
            if job.landed:
                self._hash(unknown)
            elif len(self._hash_ready(unknown)) < len(unknown):
                return
            found.extend([self._checksums[slot & 0xFFFFFFFF] for slot in batch])
            yield
            if job.dropped:
                return
        job.checksums = found.tobytes()

    def look(self, eager: Integrity) -> Iterator[None]:
        """Hash what was published since the last look, a batch at each turn."""
        published = self._ledger.published
        if published == self._published:
            return
        self._published = published
        slots = array.array("Q", self._ledger.ready_besides(self._seen))
        for first in range(0, len(slots), self._batch):
            self._hash_ready(slots[first : first + self._batch], eager)
            yield

    def _hash_ready(
        self, slots: "array.array[int]", integrity: Integrity = Integrity.FULL
    ) -> "array.array[int]":
        """Hash those that are still READY; return them."""
        pins = self._ledger.pin_slots(slots)
        pinned = array.array("Q", [slot for slot, pin in zip(slots, pins, strict=True) if pin])
        wanted = pinned if integrity is Integrity.FULL else self._sampled(pinned)
        for slot in pinned:
            self._seen[slot & 0xFFFFFFFF] = slot >> 32
        try:
            self._hash(wanted)
        finally:
            held = self._ledger.unpin_many(pinned)
        if held == len(pinned):
            return pinned
        # They may have changed under our eyes.
        for slot in pinned:
            self._hashed[slot & 0xFFFFFFFF] = 0
        return array.array("Q")

    def _sampled(self, pinned: "array.array[int]") -> "array.array[int]":
        keys, size = self._ledger.keys_of(pinned), self._ledger.key_size
        chosen = [
            slot for at, slot in enumerate(pinned) if is_sampled(keys[at * size : (at + 1) * size])
        ]
        return array.array("Q", chosen)

    def _hash(self, slots: "array.array[int]") -> None:
        size = self._block_bytes
        for slot, block in zip(slots, memoryview(block_ids(slots)).cast("I"), strict=True):
            start = block * size
            self._checksums[block] = checksum(self._bytes[start : start + size])
            self._hashed[block] = self._seen[block] = slot >> 32
        if slots:
            self._counters.add("blocks_hashed", len(slots))

    def _knows(self, slot: int) -> bool:
        return self._hashed[slot & 0xFFFFFFFF] == slot >> 32


def _goes_on(work: Iterator[None]) -> bool:
    """Do the next batch of `work`; False if it is over."""
    try:
        next(work)
    except StopIteration:
        return False
    except Exception:
        # It costs what is worked at; others still want theirs.
        log.exception("blocks could not be hashed")
        return False
    return True
