"""The Prometheus metrics of mpkv, and how their samples reach vLLM."""

import logging
import time

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadingMetricMetadata,
)

from mpkv.memory import Ledger
from mpkv.messages import MissReason

log = logging.getLogger("mpkv.engine")

LOOKUP_DELAY = "mpkv:lookup_delay_seconds"
GRANT = "mpkv:grant_seconds"
PULL = "mpkv:pull_seconds"
PULLED_BLOCKS = "mpkv:pulled_blocks"
PULLED_BYTES = "mpkv:pulled_bytes"
MISSES = "mpkv:pull_misses"
MISSED_BLOCKS = "mpkv:pull_missed_blocks"
HELPER_EVENTS = "mpkv:helper_events"
TIER_BLOCKS = "mpkv:tier_blocks"
CONTENT_EPOCH = "mpkv:content_epoch"
CONTENT_KNOWN = "mpkv:content_known"

DELAY_BUCKETS = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip

# Walking the block table and the counter pages is cheap, but not per step.
SAMPLE_S = 1.0
# A peer in trouble fails every pull; the log tells once in a while, the counters all.
WARN_EVERY_S = 10.0
# Peers are named by requests, so the number of label values must not be theirs to choose.
LABELLED_PEERS = 256
# Beyond every bucket, and every pull's deadline.
LONGEST_S = 60.0


def definitions() -> dict[str, OffloadingMetricMetadata]:
    """What vLLM must know before a sample may be emitted."""
    delay = DELAY_BUCKETS
    return {
        LOOKUP_DELAY: OffloadingHistogramMetadata(
            documentation="From a request's arrival until the scheduler saw its pull end.",
            buckets=delay,
        ),
        GRANT: OffloadingHistogramMetadata(
            documentation="From a pull's start until the source's grant arrived.", buckets=delay
        ),
        PULL: OffloadingHistogramMetadata(
            documentation="From a pull's start until the source confirmed the bytes.",
            buckets=delay,
        ),
        PULLED_BLOCKS: OffloadingCounterMetadata(
            documentation="Blocks pulled from a peer.", labelnames=("peer",)
        ),
        PULLED_BYTES: OffloadingCounterMetadata(
            documentation="Bytes pulled from a peer.", labelnames=("peer",)
        ),
        MISSES: OffloadingCounterMetadata(
            documentation="Pulls that ended without blocks.", labelnames=("peer", "reason")
        ),
        MISSED_BLOCKS: OffloadingCounterMetadata(
            documentation="Blocks that were asked for and not given.",
            labelnames=("peer", "reason"),
        ),
        HELPER_EVENTS: OffloadingCounterMetadata(
            documentation="What the helper processes counted.", labelnames=("helper", "event")
        ),
        TIER_BLOCKS: OffloadingGaugeMetadata(
            documentation="Blocks of the CPU tier by state, and pins on them.",
            labelnames=("state",),
        ),
        CONTENT_EPOCH: OffloadingGaugeMetadata(documentation="Cache resets so far."),
        CONTENT_KNOWN: OffloadingGaugeMetadata(
            documentation="Whether it is known what the weights are; nothing is shared before."
        ),
    }


class Meter:
    """Collects samples on the scheduler thread until vLLM fetches them."""

    def __init__(self, ledger: Ledger, block_bytes: int) -> None:
        self._ledger = ledger
        self._block_bytes = block_bytes
        self._stats = OffloadingConnectorStats()
        self._sampled_at = 0.0
        self._helper_totals: dict[tuple[str, str], int] = {}
        self._warned: dict[tuple[str, str], float] = {}
        self._peers: set[str] = set()

    def lookup_ended(self, seconds: float) -> None:
        self._stats.observe_histogram(LOOKUP_DELAY, seconds)

    def pulled(self, peer: str, blocks: int, granted_s: float, confirmed_s: float) -> None:
        label = (self._label(peer),)
        self._stats.observe_histogram(GRANT, _plausible(granted_s))
        self._stats.observe_histogram(PULL, _plausible(confirmed_s))
        self._stats.increase_counter(PULLED_BLOCKS, blocks, label)
        self._stats.increase_counter(PULLED_BYTES, blocks * self._block_bytes, label)

    def missed(self, peer: str, reason: MissReason, detail: str) -> None:
        self._stats.increase_counter(MISSES, 1, (self._label(peer), reason.value))
        self._say(peer, reason, f"nothing pulled from {peer}: {reason.value} ({detail})")

    def not_given(self, peer: str, reason: MissReason, blocks: int, detail: str) -> None:
        self._stats.increase_counter(MISSED_BLOCKS, blocks, (self._label(peer), reason.value))
        text = f"{blocks} blocks not pulled from {peer}: {reason.value} ({detail})"
        self._say(peer, reason, text)

    def _say(self, peer: str, reason: MissReason, text: str) -> None:
        if reason in (MissReason.NOT_HELD, MissReason.ABORTED):
            log.debug("%s", text)
            return
        now = time.monotonic()
        last = self._warned.get((peer, reason.value), -WARN_EVERY_S)
        if now - last >= WARN_EVERY_S:
            if len(self._warned) > 1024:
                self._warned.clear()
            self._warned[(peer, reason.value)] = now
            log.warning("%s; the request computes locally", text)

    def take(self, stock: int) -> OffloadingConnectorStats | None:
        """Return what has been collected since the last call, None if nothing. `stock`: how
        many slots are kept ready."""
        now = time.monotonic()
        if now - self._sampled_at >= SAMPLE_S:
            self._sampled_at = now
            self._sample(stock)
        if self._stats.is_empty():
            return None
        stats, self._stats = self._stats, OffloadingConnectorStats()
        return stats

    def _sample(self, stock: int) -> None:
        counts = self._ledger.counts()
        counts["stock"] = stock
        counts["landing"] -= stock
        for state, count in counts.items():
            self._stats.set_gauge(TIER_BLOCKS, count, (state,))
        self._stats.set_gauge(CONTENT_EPOCH, self._ledger.epoch)
        self._stats.set_gauge(CONTENT_KNOWN, int(bool(self._ledger.content)))
        for role in ("control", "target", "initiator"):
            for event, total in self._ledger.counters(role).read().items():
                before = self._helper_totals.get((role, event), 0)
                if total > before:
                    self._helper_totals[(role, event)] = total
                    self._stats.increase_counter(HELPER_EVENTS, total - before, (role, event))

    def _label(self, peer: str) -> str:
        if peer not in self._peers:
            if len(self._peers) >= LABELLED_PEERS:
                return "other"
            self._peers.add(peer)
        return peer


def _plausible(seconds: float) -> float:
    """The control plane says when; what is no number would stay in a histogram's sum."""
    return min(max(0.0, seconds), LONGEST_S)
