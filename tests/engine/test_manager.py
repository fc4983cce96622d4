"""`MpkvManager` through vLLM's interface, over a real ledger, region and helpers."""

import os
import uuid
from collections.abc import Iterator

import msgspec
import pytest
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingEvent,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    ScheduleEndContext,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from mpkv.cluster.settings import EngineSettings, PeerAddress
from mpkv.engine import manager as manager_module
from mpkv.engine.manager import MpkvManager
from mpkv.engine.region import leave_digest, region_path
from mpkv.errors import SegmentRefused
from mpkv.memory import Ledger
from mpkv.messages import KeyGroup
from tests.support.leftovers import Leftovers
from tests.support.standin import COMPATIBILITY, StandIn, free_port, make_keys

BLOCKS = 16
BLOCK_BYTES = 4096
NO_STEP = ScheduleEndContext(new_req_ids=[], preempted_req_ids=[])


def make_manager(blocks: int = BLOCKS) -> MpkvManager:
    engine_id = f"mpkv-test-{uuid.uuid4().hex}"
    with open(region_path(engine_id), "wb") as region:
        region.truncate(blocks * BLOCK_BYTES)
        leave_digest(region.fileno(), 0, bytes(32))
    settings = EngineSettings(node="test", port=free_port())
    manager = MpkvManager(settings, engine_id, 0, blocks, BLOCK_BYTES, emit_events=True)
    manager.start(msgspec.structs.replace(COMPATIBILITY, block_bytes=BLOCK_BYTES), 1)
    assert not os.path.exists(region_path(engine_id))
    return manager


@pytest.fixture
def manager() -> Iterator[MpkvManager]:
    before = Leftovers.now()
    manager = make_manager()
    yield manager
    manager.shutdown()
    assert before.new() == []


def keys_of(prefix: str, count: int) -> list[OffloadKey]:
    return [OffloadKey(key) for key in make_keys(prefix, count)]


def request(name: str = "r") -> ReqContext:
    return ReqContext(req_id=name)


def prepared(manager: MpkvManager, keys: list[OffloadKey], name: str = "r") -> PrepareStoreOutput:
    output = manager.prepare_store(keys, request(name))
    assert output is not None
    return output


def store(manager: MpkvManager, keys: list[OffloadKey]) -> list[int]:
    output = prepared(manager, keys)
    manager.complete_store(keys, request())
    return [int(block) for block in output.store_spec.block_ids]  # type: ignore[attr-defined]


def lookups(manager: MpkvManager, keys: list[OffloadKey]) -> set[LookupResult]:
    return {manager.lookup(key, request()) for key in keys}


def events(manager: MpkvManager) -> list[tuple[bool, list[OffloadKey]]]:
    taken: list[OffloadingEvent] = list(manager.take_events())
    return [(event.removed, event.keys) for event in taken]


def test_a_stored_block_is_a_hit_at_the_place_it_was_stored(manager: MpkvManager) -> None:
    keys = keys_of("k", 5)
    assert lookups(manager, keys) == {LookupResult.MISS}
    blocks = store(manager, keys)
    assert len(set(blocks)) == 5
    assert lookups(manager, keys) == {LookupResult.HIT}
    spec = manager.prepare_load(keys[1:4], request("reader"))
    assert [int(block) for block in spec.block_ids] == blocks[1:4]  # type: ignore[attr-defined]
    assert manager.get_load_source(keys[1], request("reader")) == CacheHitSource.HOST
    assert manager.ledger.counts()["engine_pins"] == 3
    manager.complete_load(set(keys[1:4]), request("reader"))
    assert manager.ledger.counts()["engine_pins"] == 0
    assert events(manager) == [(False, keys)]


def test_a_store_under_way_is_pending_but_not_for_ever(
    manager: MpkvManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of("k", 2)
    prepared(manager, keys)
    assert lookups(manager, keys) == {LookupResult.HIT_PENDING}
    monkeypatch.setattr(manager_module, "FILL_WAIT_S", 0.0)
    assert lookups(manager, keys) == {LookupResult.MISS}
    manager.complete_store(keys, request())
    assert lookups(manager, keys) == {LookupResult.HIT}


def test_what_is_here_or_on_its_way_is_not_stored_again(manager: MpkvManager) -> None:
    keys = keys_of("k", 6)
    store(manager, keys[:2])
    prepared(manager, keys[2:4])
    output = prepared(manager, [*keys, keys[5]])
    assert output.keys_to_store == keys[4:]
    assert len(output.store_spec.block_ids) == 2  # type: ignore[attr-defined]


def test_a_failed_store_leaves_nothing(manager: MpkvManager) -> None:
    keys = keys_of("k", 3)
    prepared(manager, keys)
    manager.complete_store(keys, request(), success=False)
    assert lookups(manager, keys) == {LookupResult.MISS}
    assert manager.ledger.counts()["free"] == BLOCKS


def test_a_full_tier_evicts_and_says_what(manager: MpkvManager) -> None:
    old, new = keys_of("old", BLOCKS), keys_of("new", 4)
    store(manager, old)
    events(manager)
    output = prepared(manager, new, "another")
    assert len(output.evicted_keys) == 4
    assert set(output.evicted_keys) < set(old)
    assert events(manager) == [(True, output.evicted_keys)]
    assert lookups(manager, output.evicted_keys) == {LookupResult.MISS}


def test_blocks_being_loaded_are_never_evicted(manager: MpkvManager) -> None:
    keys = keys_of("k", BLOCKS)
    store(manager, keys)
    manager.prepare_load(keys, request("reader"))
    assert manager.prepare_store(keys_of("new", 1), request("another")) is None
    manager.complete_load(keys, request("reader"))
    assert manager.prepare_store(keys_of("new", 1), request("another")) is not None


def test_a_store_does_not_evict_its_own_prefix(manager: MpkvManager) -> None:
    keys = keys_of("k", BLOCKS)
    store(manager, keys[:4])
    store(manager, keys_of("other", BLOCKS - 4))
    output = prepared(manager, keys[:8], "another")
    assert output.keys_to_store == keys[4:8]
    assert not set(output.evicted_keys) & set(keys)


def test_a_prompt_that_is_stored_step_by_step_keeps_what_it_has(manager: MpkvManager) -> None:
    store(manager, keys_of("other", BLOCKS))
    keys = keys_of("k", BLOCKS + 4)
    for first in range(0, BLOCKS, 4):
        output = prepared(manager, keys[first : first + 4], "long")
        manager.complete_store(output.keys_to_store, request("long"))
        assert lookups(manager, keys[: first + 4]) == {LookupResult.HIT}
    # The tier is full of it: what follows is not stored, and what is there stays.
    assert manager.prepare_store(keys[BLOCKS:], request("long")) is None
    assert lookups(manager, keys[:BLOCKS]) == {LookupResult.HIT}
    manager.on_request_finished(request("long"))
    assert manager.prepare_store(keys[BLOCKS:], request("later")) is not None


def test_under_a_new_epoch_no_peer_finds_what_was_there_before(
    manager: MpkvManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keys_of("kept", 3)
    store(manager, kept)
    epoch = manager.ledger.epoch
    control = Ledger.attach(manager.ledger.fd)
    found: list[tuple[int, int]] = []
    # As a control plane does that gets a turn in the middle of the reset.
    monkeypatch.setattr(
        manager.pulls,
        "drain",
        lambda: found.append((control.epoch, control.lookup_prefix(b"".join(kept)))),
    )
    manager.reset_cache()
    control.close()
    assert found == [(epoch + 1, 0)]


def test_under_a_new_epoch_no_peer_finds_the_content_of_before(
    manager: MpkvManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so none of it, until the workers have looked at their weights again."""
    control = Ledger.attach(manager.ledger.fd)
    content = control.content
    assert len(content) == 16
    found: list[bytes] = []
    monkeypatch.setattr(manager.pulls, "drain", lambda: found.append(control.content))
    manager.reset_cache()
    assert found == [b""]
    manager.content.all_gone()
    manager.content.seen(manager.content.to_look(True), 0, bytes(32))
    assert control.content == content
    control.close()


def test_a_reset_forgets_all_and_reuses_nothing_in_use(manager: MpkvManager) -> None:
    kept, loading, filling = keys_of("kept", 3), keys_of("loading", 4), keys_of("filling", 2)
    store(manager, kept + loading)
    manager.prepare_load(loading, request("reader"))
    prepared(manager, filling)
    epoch = manager.ledger.epoch
    manager.reset_cache()
    assert manager.ledger.epoch == epoch + 1
    assert lookups(manager, kept + loading + filling) == {LookupResult.MISS}
    # Workers may still read four rows and write two.
    assert manager.ledger.counts()["free"] == BLOCKS - 6
    assert manager.has_pending_work()
    # A job of before the reset is nobody's any more, also under equal keys.
    again = prepared(manager, filling)
    manager.on_reset_flushed()
    assert not manager.has_pending_work()
    assert manager.ledger.counts()["free"] == BLOCKS - 2
    manager.complete_store(again.keys_to_store, request())
    assert lookups(manager, filling) == {LookupResult.HIT}


def test_what_a_peer_still_reads_at_a_reset_is_free_again_at_the_step_after_its_lease(
    manager: MpkvManager,
) -> None:
    keys = keys_of("leased", 4)
    store(manager, keys)
    control = Ledger.attach(manager.ledger.fd)
    lease = control.pin_many(b"".join(keys))
    manager.reset_cache()
    manager.on_reset_flushed()
    manager.on_schedule_end(NO_STEP)
    assert manager.ledger.counts()["draining"] == 4
    control.unpin_many(lease)
    manager.on_schedule_end(NO_STEP)
    assert manager.ledger.counts()["free"] == BLOCKS
    control.close()


def test_a_key_pulled_while_it_is_being_stored(manager: MpkvManager) -> None:
    """The request hits at once, and the store's slot comes back when it completes."""
    key = keys_of("both", 1)
    with StandIn("source", block_bytes=BLOCK_BYTES) as source:
        source.ledger.set_content(manager.ledger.content)
        source.store(key)
        prepared(manager, key)
        for attempt in range(1000):
            name = f"r{attempt}"
            pulls = manager.pulls
            pulls.start(name, source.address, (KeyGroup(key[0], 16, 0),))
            while pulls.pending(name):
                manager.on_schedule_end(NO_STEP)
            if manager.lookup(key[0], request(name)) == LookupResult.HIT:
                break
            pulls.finished(name)
        assert manager.get_load_source(key[0], request(name)) == CacheHitSource.P2P
        block = manager.ledger.find(key[0])
        manager.complete_store(key, request())
        assert manager.ledger.find(key[0]) == block
        manager.on_request_finished(request(name))
        counts = manager.ledger.counts()
        assert (counts["ready"], counts["filling"], counts["engine_pins"]) == (1, 0, 0)


def test_metrics_name_only_what_was_defined(manager: MpkvManager) -> None:
    from mpkv.engine.metrics import definitions

    store(manager, keys_of("k", 3))
    stats = manager.get_stats()
    assert stats is not None
    assert set(stats.data["data"]) <= set(definitions())
    assert stats.data["data"]["mpkv:tier_blocks"][("ready",)] == 3


def test_a_missing_region_is_said_clearly() -> None:
    manager = MpkvManager(
        EngineSettings(node="test"), "mpkv-test-none", 0, BLOCKS, BLOCK_BYTES, emit_events=False
    )
    with pytest.raises(SegmentRefused, match=r"mpkv-test-none.*does not support engines that span"):
        manager.start(COMPATIBILITY, 1)
    manager.shutdown()


def test_sources_are_the_nodes_of_the_cluster_file_and_the_own_ranks() -> None:
    settings = EngineSettings(
        node="a",
        advertise="10.0.0.1",
        ranks=2,
        peers=(PeerAddress("b", "10.0.0.2", 7710, ranks=2),),
    )

    def may_pull_from(source: str, settings: EngineSettings = settings) -> bool:
        return MpkvManager(settings, "any", 0, BLOCKS, BLOCK_BYTES, False).may_pull_from(source)

    assert may_pull_from("10.0.0.2:7711")
    assert may_pull_from("10.0.0.1:7711")
    assert not may_pull_from("10.0.0.1:7712")
    assert not may_pull_from("10.0.0.3:7710")
    assert may_pull_from("10.0.0.3:7710", EngineSettings(node="alone"))


def test_a_request_that_names_any_rank_of_a_node_means_the_node() -> None:
    settings = EngineSettings(
        node="a",
        advertise="10.0.0.1",
        ranks=3,
        peers=(PeerAddress("b", "10.0.0.2", 7710, ranks=2),),
    )
    manager = MpkvManager(settings, "any", 1, BLOCKS, BLOCK_BYTES, False)
    assert manager.ranks_of("10.0.0.2:7711") == ("10.0.0.2:7711", ("10.0.0.2:7710",))
    assert manager.ranks_of("10.0.0.1:7710") == ("10.0.0.1:7710", ("10.0.0.1:7712",))
    assert manager.ranks_of("10.0.0.1:7711") == ("10.0.0.1:7710", ("10.0.0.1:7712",))
    alone = MpkvManager(EngineSettings(node="alone"), "any", 0, BLOCKS, BLOCK_BYTES, False)
    assert alone.ranks_of("10.0.0.3:7710") == ("10.0.0.3:7710", ())
