"""The destination's side of checking: whether what landed is what the source has.

The blocks that landed are hashed here while the source is asked to confirm them; its word
brings its own checksums of them.
"""

import logging
import queue
from collections.abc import Iterator

from mpkv.cluster.settings import Integrity
from mpkv.control.checksums import CHECKSUM, Checksums, Job, keys_at
from mpkv.control.destination.open_pull import OpenPull
from mpkv.control.destination.session import Failure
from mpkv.control.say_once import SayOnce
from mpkv.memory import Counters
from mpkv.messages import MissReason

log = logging.getLogger("mpkv.control")

# Of a key, in hexadecimal digits: enough to find it.
SHOWN_DIGITS = 16


class Checks:
    """Of all pulls whose READ is done."""

    def __init__(
        self, integrity: Integrity, key_size: int, checksums: Checksums, counters: Counters
    ) -> None:
        self.integrity = integrity
        self._key_size = key_size
        self._checksums = checksums
        self._counters = counters
        self._by_job: dict[Job, OpenPull] = {}
        self._over: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._say_once = SayOnce(log)

    def begin(self, pull: OpenPull) -> None:
        """Its blocks have landed."""
        if self.integrity is Integrity.OFF:
            return
        keys = b""
        if self.integrity is Integrity.SAMPLED:
            keys = self._keys(pull)
        pull.part.job = Job(self.integrity, pull.part.slots, keys, landed=True, over=self._over)
        self._by_job[pull.part.job] = pull
        self._checksums.submit(pull.part.job)

    def pending(self, pull: OpenPull) -> bool:
        """Whether the checksums of what landed are still being made."""
        return pull.part.job in self._by_job

    def over(self) -> Iterator[OpenPull]:
        """The pulls whose checksums have been made since the last call."""
        while not self._over.empty():
            pull = self._by_job.pop(self._over.get(), None)
            if pull is not None:
                yield pull

    def drop(self, pull: OpenPull) -> None:
        """`pull` has ended."""
        if pull.part.job is not None:
            pull.part.job.dropped = True
            self._by_job.pop(pull.part.job, None)

    def objection(self, pull: OpenPull, now: float) -> Failure | None:
        """Why the bytes do not count although the source has confirmed them; None if they do."""
        job, sent = pull.part.job, pull.part.sent
        made = b"" if job is None else job.checksums
        if made is None:
            return Failure(MissReason.TRANSFER_FAILED, "what landed could not be hashed")
        if len(sent) != len(made):
            counts = f"{len(sent) / CHECKSUM:g} checksums of {len(made) // CHECKSUM} blocks"
            return Failure(MissReason.TRANSFER_FAILED, f"{pull.session.label} sent {counts}")
        self._counters.add("blocks_checked", len(made) // CHECKSUM)
        if job is None or sent == made:
            return None
        return self._corrupted(pull, job, made, now)

    def _corrupted(self, pull: OpenPull, job: Job, made: bytes, now: float) -> Failure:
        ours, theirs = (memoryview(packed).cast("Q") for packed in (made, pull.part.sent))
        wrong = [at for n, at in enumerate(job.positions) if ours[n] != theirs[n]]
        self._counters.add("blocks_corrupted", len(wrong))
        size = self._key_size
        first = self._keys(pull)[wrong[0] * size : (wrong[0] + 1) * size]
        detail = (
            f"{len(wrong)} of {len(job.positions)} blocks from {pull.session.label} have not the "
            f"source's checksum, the first of them that of key {first.hex()[:SHOWN_DIGITS]}..."
        )
        self._say_once(f"a pull brought wrong bytes, which are not used: {detail}", now)
        return Failure(MissReason.CORRUPTED, detail)

    def _keys(self, pull: OpenPull) -> bytes:
        return keys_at(pull.wanted.groups, pull.part.indexes, self._key_size)
