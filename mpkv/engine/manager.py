"""`MpkvManager`: vLLM's `OffloadingManager` over the shared ledger.

Everything here runs on the scheduler thread: it calls the C table, pushes to a ring and
pops from one. It takes no lock, since nothing else enters it.
"""

import itertools
import struct
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.kv_offload.base import (
    LoadStoreSpec,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from mpkv.cluster.settings import EngineSettings, PeerAddress
from mpkv.engine.booked_pull import SLOT_BYTES
from mpkv.engine.content import Content
from mpkv.engine.metrics import Meter
from mpkv.engine.pull_book import PullBook
from mpkv.engine.region import DataRegion
from mpkv.engine.source import sources
from mpkv.engine.supervisor import Supervisor
from mpkv.memory import FILLING, MISS_SLOT, Ledger, block_ids
from mpkv.messages import Compatibility, MissReason, Tier
from mpkv.trace import Trace, open_trace

# A store that has not completed by then will not hold up other requests any longer.
FILL_WAIT_S = 1.0
# Far more than requests run at once, so that none has the number of another.
OWNERS = (1 << 32) - 1
# In a log line.
SHOWN_SOURCES = 8


class MpkvManager(OffloadingManager):
    """Allocates, publishes and evicts the blocks of one engine's tier."""

    def __init__(
        self,
        settings: EngineSettings,
        engine_id: str,
        rank: int,
        blocks: int,
        block_bytes: int,
        emit_events: bool,
        info: Any = None,
    ) -> None:
        """Nothing is opened before `start`; `info` is what `config_info` reports."""
        self.settings = settings
        own = PeerAddress(settings.node, settings.advertise, settings.port, settings.ranks)
        address = f"{settings.advertise}:{settings.port + rank}"
        self._sources = sources((*settings.peers, own), address)
        self._engine_id = engine_id
        self._rank = rank
        self._blocks = blocks
        self.block_bytes = block_bytes
        self._info = info
        self._events: list[OffloadingEvent] | None = [] if emit_events else None
        # Stores under way: key -> (slot, when it was handed to the workers).
        self._filling: dict[OffloadKey, tuple[int, float]] = {}
        # Requests that have stored: their blocks must not make room for later ones of theirs.
        self._owners: dict[str, int] = {}
        self._owner_numbers = itertools.count()
        # Loads under way: request -> pinned slots. vLLM has one load per request.
        self._loads: dict[str, bytes] = {}
        # Slots and pins of jobs that a cache reset made stale; workers may still write.
        self._stale_fills: list[int] = []
        self._stale_loads: list[bytes] = []
        self._supervisor: Supervisor | None = None

    def start(self, compatibility: Compatibility, workers: int) -> None:
        """Open the tier, which so many workers share, and start the helpers; returns without
        waiting for them.

        Raises SegmentRefused if the workers' region is not there.
        """
        settings = self.settings
        region = DataRegion(self._engine_id, self._blocks, self.block_bytes)
        self._region = region
        self._ledger = Ledger.create(self._blocks, compatibility.key_size)
        digests = region.digests(workers)
        self.content = Content(self._ledger, settings.content, digests, workers)
        self.trace: Trace = open_trace(settings.trace_dir, f"{settings.node}-engine")
        self._meter = Meter(self._ledger, self.block_bytes)
        tier = Tier(region.fd, region.blocks, region.block_bytes)
        self._supervisor = Supervisor(settings, compatibility, self._rank, tier, self._ledger)
        self.pulls = PullBook(
            self._ledger,
            self._supervisor,
            self._meter,
            settings.deadline_s,
            self.trace,
            self._changed,
            settings.head_start,
        )
        self._supervisor.start()

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    def may_pull_from(self, source: str) -> bool:
        """Only from nodes of the cluster file, if it lists others than this one: whoever sends
        requests must not choose whom the engine believes."""
        return not self.settings.peers or source in self._sources

    def ranks_of(self, source: str) -> tuple[str, tuple[str, ...]]:
        """Whom to ask when a request names `source`, which means its node, and whom else."""
        return self._sources.get(source, (source, ()))

    def refuse_source(self, source: str) -> None:
        # One label for all: a request could name as many as it likes.
        known = ", ".join(sorted(self._sources)[:SHOWN_SOURCES])
        detail = f"{source} is no node of the cluster file, which has {known}"
        self._meter.missed("unlisted", MissReason.REFUSED, detail)

    def refuse_for_content(self, source: str) -> None:
        self._meter.missed(source, MissReason.CONTENT, self.content.lost)

    # --- lookups and loads -----------------------------------------------------------

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        if self._ledger.find(key) >= 0:
            return LookupResult.HIT
        filling = self._filling.get(key)
        if filling is not None and time.monotonic() - filling[1] < FILL_WAIT_S:
            return LookupResult.HIT_PENDING
        return LookupResult.MISS

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        if self.pulls.adopted(req_context.req_id, key):
            return CacheHitSource.P2P
        return CacheHitSource.HOST

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """Pin the blocks; they were all READY at this step's lookups.

        Nothing evicts between a lookup and this call, so a miss here is a bug of ours
        and not something to carry on from with a wrong block.
        """
        slots = self._ledger.pin_many(b"".join(keys))
        if MISS_SLOT in _unpack(slots):
            raise AssertionError(f"a block of request {req_context.req_id} left the tier in a scan")
        self._loads[req_context.req_id] = self._loads.get(req_context.req_id, b"") + slots
        return _spec(slots)

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self._ledger.touch_many(b"".join(keys))

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self._ledger.unpin_many(self._loads.pop(req_context.req_id, b""))

    # --- stores ----------------------------------------------------------------------

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        offered = list(dict.fromkeys(keys))
        # What is here already is pinned meanwhile, lest it make room for its suffix.
        present = self._ledger.pin_many(b"".join(offered))
        wanted = [
            key
            for key, slot in zip(offered, _unpack(present), strict=True)
            if slot == MISS_SLOT and key not in self._filling
        ]
        allocated: tuple[bytes, bytes] | None = (b"", b"")
        if wanted:
            owner = self._owners.get(req_context.req_id)
            if owner is None:
                owner = next(self._owner_numbers) % OWNERS + 1
                self._owners[req_context.req_id] = owner
            allocated = self._ledger.allocate(len(wanted), FILLING, owner)
        self._ledger.unpin_many(present)
        if allocated is None:
            return None
        slots, evicted = allocated
        now = time.monotonic()
        for key, slot in zip(wanted, _unpack(slots), strict=True):
            self._filling[key] = (slot, now)
        if evicted:
            self._changed(b"", evicted)
        return PrepareStoreOutput(
            keys_to_store=wanted, store_spec=_spec(slots), evicted_keys=self._split(evicted)
        )

    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        done = [(key, self._filling.pop(key)[0]) for key in keys if key in self._filling]
        slots = _pack([slot for _, slot in done])
        if not success:
            self._ledger.free(slots)
            return
        # A key that a pull brought meanwhile is READY already: its slot comes back free.
        results = self._ledger.publish(slots, b"".join(key for key, _ in done), False)
        stored = [key for (key, _), result in zip(done, results, strict=True) if result == 0]
        if stored:
            self._changed(b"".join(stored), b"")

    # --- requests and steps ----------------------------------------------------------

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self.pulls.finished(req_context.req_id)
        self._owners.pop(req_context.req_id, None)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        # A peer's lease may have outlived the reset that forgot its blocks.
        self._ledger.reclaim()
        self.pulls.drain()
        self.pulls.start_waiting()

    def has_pending_work(self) -> bool:
        """Keeps the engine stepping only while workers owe reports of stale jobs."""
        return bool(self._stale_fills or self._stale_loads)

    # --- cache reset -----------------------------------------------------------------

    def reset_cache(self) -> None:
        """Forget every block; what is in use drains.

        vLLM forgets its jobs now but its workers do not: slots being filled and blocks
        being loaded stay out of use until `on_reset_flushed`.
        """
        # Before all else: whatever a peer sees of the new epoch, it must not find old content.
        self.content.may_change()
        # Before the epoch: a peer that asks in between must not be granted old blocks under the
        # new epoch. What `drain` would still adopt is refused by its epoch.
        self._ledger.drop_ready()
        self._ledger.set_epoch(self._ledger.epoch + 1)
        self.pulls.drain()
        self.pulls.cache_reset()
        self._stale_fills += [slot for slot, _ in self._filling.values()]
        self._stale_loads += self._loads.values()
        self._filling.clear()
        self._loads.clear()
        self._owners.clear()
        # Blocks that only waited for requests to look at them are free now.
        self._ledger.reclaim()

    def on_reset_flushed(self) -> None:
        self._ledger.free(_pack(self._stale_fills))
        for slots in self._stale_loads:
            self._ledger.unpin_many(slots)
        self._stale_fills.clear()
        self._stale_loads.clear()
        self._ledger.reclaim()

    # --- events, metrics, end --------------------------------------------------------

    def take_events(self) -> Iterable[OffloadingEvent]:
        if self._events is None:
            return ()
        events, self._events = self._events, []
        return events

    def get_stats(self) -> OffloadingConnectorStats | None:
        return self._meter.take(self.pulls.early.stock)

    def config_info(self) -> Sequence[Any]:
        return [self._info.as_config_info()] if self._info is not None else [{}]

    def stop_helpers(self) -> None:
        """Begin to end the helpers, as `shutdown` does; returns at once."""
        if self._supervisor is not None:
            self._supervisor.stop()

    def shutdown(self) -> None:
        if self._supervisor is not None:
            self._supervisor.shutdown()
            self._supervisor = None
            self._region.close()

    def _changed(self, stored: bytes, evicted: bytes) -> None:
        if self._events is None:
            return
        for packed, removed in ((evicted, True), (stored, False)):
            if packed:
                self._events.append(
                    OffloadingEvent(keys=self._split(packed), medium=Medium.CPU, removed=removed)
                )

    def _split(self, packed: bytes) -> list[OffloadKey]:
        size = self._ledger.key_size
        return [OffloadKey(packed[at : at + size]) for at in range(0, len(packed), size)]


def _unpack(slots: bytes) -> tuple[int, ...]:
    return struct.unpack(f"={len(slots) // SLOT_BYTES}Q", slots)


def _pack(slots: Iterable[int]) -> bytes:
    listed = list(slots)
    return struct.pack(f"={len(listed)}Q", *listed)


def _spec(slots: bytes) -> CPULoadStoreSpec:
    packed = block_ids(slots)
    return CPULoadStoreSpec(list(struct.unpack(f"={len(packed) // 4}I", packed)))
