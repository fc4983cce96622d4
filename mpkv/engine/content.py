"""What the engine's blocks are of: the scheduler's side of the digests that workers take.

Weights may change whenever vLLM lets somebody at its workers, and after a cache reset. From
then on the content is not known, so nothing is shared, until the workers have looked again in
a step that works on requests: by then the weights must be those that vLLM computes with.

Looks are numbered, and an answer counts for the look that asked for it. Blocks of two kinds
of weights may be here at once only if somebody changed them without a reset: then there is no
content until the next one.
"""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
)

from mpkv.memory import Ledger

log = logging.getLogger("mpkv.engine")

CONTENT_BYTES = 16


@dataclass
class LookMetadata(OffloadingConnectorMetadata):
    """A step's orders to the workers, of which one is to look at the weights."""

    look: int = 0


@dataclass
class LookedMetadata(OffloadingWorkerMetadata):
    """A step's reports of the workers, with what they saw: digests by look and rank."""

    seen: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "LookedMetadata":
        merged = super().aggregate(other)
        assert isinstance(merged, OffloadingWorkerMetadata)
        seen = {**self.seen, **getattr(other, "seen", {})}
        return LookedMetadata(merged.completed_jobs, merged.transfer_stats, seen)


class Content:
    """Keeps the ledger's content; scheduler thread only."""

    def __init__(self, ledger: Ledger, label: str, start: Sequence[bytes], workers: int) -> None:
        """`start`: what each of the `workers` has left at its start, empty if one has not."""
        self._ledger = ledger
        self._label = label
        self._workers = workers
        self._look = 1
        # Answers to earlier looks are about weights of which nothing is left.
        self._first = 1
        self._answers: dict[int, dict[int, bytes]] = {}
        self._known = b""
        # What the KV cache and the tier hold blocks of, as far as that is known.
        self._of = b""
        self._published = ledger.published
        self._said = b""
        # Why nothing is shared until a reset; empty if there is no such reason.
        self.lost = ""
        if len(start) == workers:
            self._learn(_combine(start))

    def all_gone(self) -> None:
        """A reset has left no block that was computed before, in vLLM's cache neither."""
        self._first = self._look
        self._answers.clear()
        self._of, self.lost = b"", ""
        self._published = self._ledger.published

    def may_change(self) -> None:
        """Weights may be about to change, or there is a reset, whose epoch follows: share nothing
        until the workers have looked."""
        if self._known and self._ledger.published != self._published:
            self._of = self._known
        self._known = b""
        self._ledger.set_content(b"")
        self._look += 1

    def to_look(self, working: bool) -> int:
        """Which look the workers are to take in this step, 0 for none. `working`: the step is
        about requests, computes for them or is asked about them."""
        if not working:
            return 0
        if self._known:
            self._of = self._known
            return 0
        return 0 if self.lost else self._look

    def seen(self, look: int, rank: int, digest: bytes) -> None:
        """A worker has looked, before it computed anything of that step; none: it could not."""
        if look < self._first or self.lost:
            return
        if not digest:
            self._lose("the weights cannot be sampled, see the log of the workers")
            return
        answers = self._answers.setdefault(look, {})
        answers[rank] = digest
        if len(answers) < self._workers:
            return
        del self._answers[look]
        found = _combine([answers[rank] for rank in sorted(answers)])
        if self._of and found != self._of:
            was = self._of[:6].hex()
            self._lose(f"the weights have changed while blocks of the old ones ({was}) are here")
            return
        self._of = found
        if look == self._look:
            self._learn(found)

    def _lose(self, why: str) -> None:
        self.lost = why
        text = "%s: nothing is shared until reset_prefix_cache with reset_external=true succeeds"
        log.error(text, why)

    def _learn(self, content: bytes) -> None:
        self._known = content
        self._ledger.set_content(content)
        if content != self._said:
            self._said = content
            label = f', "{self._label}"' if self._label else ""
            log.info("content %s%s", content[:6].hex(), label)


def _combine(digests: Sequence[bytes]) -> bytes:
    """Of an engine, from those of its workers in order of rank."""
    return hashlib.sha256(b"".join(digests)).digest()[:CONTENT_BYTES]
