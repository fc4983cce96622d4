"""The hashing thread of one engine as the world has it: a job is done when the test says so."""

import array
from collections import deque

from mpkv.control.checksums import Job, checksum, chosen
from mpkv.memory import Ledger

FLIPPED = b"flipped"


class ModelChecksums:
    """What the hashing thread of one engine does, one job at each call of `work`."""

    def __init__(self, ledger: Ledger, tier: list[bytes]) -> None:
        """`tier` holds each block's content; `ledger` is seen as by the control plane."""
        self._ledger = ledger
        self._tier = tier
        self._jobs: deque[Job] = deque()
        # Of blocks that were hashed soon after their publication, by slot.
        self._known: dict[int, int] = {}

    def submit(self, job: Job) -> None:
        self._jobs.append(job)

    def look(self) -> None:
        """Hash what has been published."""
        for slot in self._ready():
            self._known.setdefault(slot, self._checksum(slot))

    def flip(self) -> None:
        """READY blocks are no more what they were published as."""
        for slot in self._ready():
            self._tier[slot & 0xFFFFFFFF] += FLIPPED

    def mend(self) -> None:
        self._tier[:] = [content.removesuffix(FLIPPED) for content in self._tier]

    def _ready(self) -> memoryview:
        nothing = bytes(4 * self._ledger.blocks)
        return memoryview(self._ledger.ready_besides(nothing)).cast("Q")

    def work(self) -> bool:
        if not self._jobs:
            return False
        job = self._jobs.popleft()
        slots = memoryview(job.slots).cast("Q")
        job.positions = chosen(job.integrity, job.keys, len(slots))
        pins = self._ledger.pin_slots(job.slots)
        if job.landed or all(pins):
            sums = [self._known.get(slots[at]) or self._checksum(slots[at]) for at in job.positions]
            job.checksums = array.array("Q", sums).tobytes()
        self._ledger.unpin_many(
            array.array("Q", [slot for slot, pin in zip(slots, pins, strict=True) if pin])
        )
        job.over.put(job)
        return True

    def _checksum(self, slot: int) -> int:
        return checksum(self._tier[slot & 0xFFFFFFFF])
