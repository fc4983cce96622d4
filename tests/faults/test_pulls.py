"""What a request gets when its source is well, ill, gone, or somebody else by now."""

import signal
import time

import msgspec
import pytest

from mpkv.cluster.settings import PeerAddress
from mpkv.messages import MissReason
from tests.faults.conftest import MakeStandIn
from tests.support.standin import COMPATIBILITY, CONTENT, StandIn, free_port, make_keys

Pair = tuple[StandIn, StandIn]


def test_the_longest_prefix_is_pulled_with_the_right_bytes(pair: Pair) -> None:
    source, destination = pair
    keys = make_keys("prompt", 40)
    source.store(keys[:30])
    assert destination.pull("r1", source.address, keys) == [True] * 30 + [False] * 10
    assert destination.meter.blocks == 30
    assert not destination.meter.misses
    # The whole of it is here now; the rest follows when the source has it.
    source.store(keys[30:])
    assert destination.pull("r2", source.address, keys[30:]) == [True] * 10
    destination.wait_idle()
    assert destination.clean()
    source.wait_clean()


def test_a_block_the_source_does_not_hold_is_a_miss_at_once(pair: Pair) -> None:
    source, destination = pair
    keys = make_keys("never", 8)
    assert destination.pull("r1", source.address, keys) == [False] * 8
    assert destination.meter.misses == {MissReason.NOT_HELD: 1}
    assert destination.clean()


def test_evicted_blocks_are_not_granted(standin: MakeStandIn) -> None:
    source, destination = standin("source", blocks=64), standin("destination")
    old, new = make_keys("old", 64), make_keys("new", 64)
    source.store(old)
    source.store(new)
    assert destination.pull("r1", source.address, old[:16]) == [False] * 16
    assert destination.pull("r2", source.address, new[:16]) == [True] * 16


def test_a_hundred_requests_that_end_while_their_pull_runs(pair: Pair) -> None:
    source, destination = pair
    keys = make_keys("aborted", 20)
    source.store(keys)
    for number in range(100):
        request = f"r{number}"
        destination.start_pull(request, source.address, keys)
        destination.pulls.finished(request)
        destination.step()
    destination.wait_idle()
    assert destination.meter.misses[MissReason.ABORTED] == 100
    assert destination.clean()
    source.wait_clean()
    for key in keys:
        destination.holds(key)


def test_two_pulls_of_one_request_end_each_with_its_own(pair: Pair) -> None:
    source, destination = pair
    first, second = make_keys("first", 12), make_keys("second", 5)
    source.store(first + second)
    destination.start_pull("r", source.address, first)
    destination.pulls.finished("r")
    destination.start_pull("r", source.address, second)
    destination.wait("r")
    assert [destination.holds(key) for key in second] == [True] * 5
    destination.pulls.finished("r")
    destination.wait_idle()
    for key in first:
        destination.holds(key)
    assert destination.clean()


def test_a_source_that_stops_answering(standin: MakeStandIn) -> None:
    source = standin("source")
    destination = standin("destination", deadline_s=2.0)
    keys, later = make_keys("before", 8), make_keys("after", 8)
    source.store(keys + later)
    assert destination.pull("r1", source.address, keys) == [True] * 8
    control = source.helper("control")
    control.signal(signal.SIGSTOP)
    started = time.monotonic()
    assert destination.pull("r2", source.address, later) == [False] * 8
    # A bound on waiting, not on speed: the deadline is 2 s.
    assert time.monotonic() - started < 10
    control.signal(signal.SIGCONT)
    assert sum(destination.meter.misses.values()) == 1
    assert set(destination.meter.misses) <= {MissReason.TIMED_OUT, MissReason.PEER_DOWN}
    destination.pull_until(source, later)
    destination.wait_idle()
    assert destination.clean()


def test_nobody_listens(standin: MakeStandIn) -> None:
    destination = standin("destination", deadline_s=1.5)
    keys = make_keys("nobody", 4)
    assert destination.pull("r1", f"127.0.0.1:{free_port()}", keys) == [False] * 4
    assert set(destination.meter.misses) <= {MissReason.TIMED_OUT, MissReason.PEER_DOWN}
    destination.wait_idle()
    assert destination.clean()


def test_a_source_that_restarts_on_the_same_port(standin: MakeStandIn) -> None:
    destination = standin("destination")
    keys = make_keys("restarted", 10)
    first = StandIn("source")
    with first:
        first.store(keys[:5])
        assert destination.pull("r1", first.address, keys[:5]) == [True] * 5
    second = standin("source", port=first.port)
    second.store(keys[5:])
    destination.pull_until(second, keys[5:])
    destination.wait_idle()
    assert destination.clean()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "other"), ("revision", "r2"), ("dtype", "float16"), ("cache_dtype", "fp8"),
        ("kv_layout", "BLHNC"), ("tensor_parallel", 2), ("blocks_per_chunk", 4),
        ("hash_seed", "1"), ("hash_algorithm", "xxhash_cbor"),
    ],
)  # fmt: skip
def test_a_peer_that_differs_is_refused_by_name(
    standin: MakeStandIn, capfd: pytest.CaptureFixture[str], field: str, value: object
) -> None:
    source = standin("source")
    other = msgspec.structs.replace(COMPATIBILITY, **{field: value})
    destination = standin("destination", compatibility=other)
    keys = make_keys("incompatible", 4)
    source.store(keys)
    assert destination.pull("r1", source.address, keys) == [False] * 4
    assert destination.meter.misses == {MissReason.REFUSED: 1}
    detail = destination.meter.details[0]
    ours = getattr(COMPATIBILITY, field)
    assert field in detail
    assert str(value) in detail
    assert str(ours) in detail
    logged = [line for line in capfd.readouterr().err.splitlines() if field in line]
    for node in ("[source]", "[destination]"):
        assert any(node in line and str(value) in line and str(ours) in line for line in logged), (
            f"{node} does not say which field differs"
        )


def test_a_refused_pair_does_not_disturb_others(standin: MakeStandIn) -> None:
    source, good = standin("source"), standin("good")
    other = msgspec.structs.replace(COMPATIBILITY, model="other")
    bad = standin("bad", compatibility=other)
    keys = make_keys("shared", 6)
    source.store(keys)
    assert bad.pull("r1", source.address, keys) == [False] * 6
    assert good.pull("r1", source.address, keys) == [True] * 6


def test_a_reset_cache_shares_nothing_old(pair: Pair) -> None:
    source, destination = pair
    keys = make_keys("old weights", 6)
    source.store(keys)
    assert destination.pull("r1", source.address, keys) == [True] * 6
    reset(source, b"new weights.....")
    destination.ledger.drop_ready()
    source.store(keys)
    # The source has new weights and the destination has not.
    assert destination.pull("r2", source.address, keys) == [False] * 6
    assert destination.meter.misses[MissReason.CONTENT] == 1
    reset(destination, b"new weights.....")
    assert destination.pull("r3", source.address, keys) == [True] * 6


@pytest.mark.parametrize("which", ["source", "destination", "both"])
def test_a_reset_for_the_same_weights_isolates_nobody(pair: Pair, which: str) -> None:
    source, destination = pair
    keys = make_keys("same weights", 6)
    for engine in pair:
        if which in (engine.settings.node, "both"):
            reset(engine, CONTENT)
    source.store(keys)
    assert destination.pull("r", source.address, keys) == [True] * 6


def test_a_pull_waits_until_the_own_weights_are_known(pair: Pair) -> None:
    source, destination = pair
    keys = make_keys("unknown", 6)
    source.store(keys)
    reset(destination, b"")
    destination.start_pull("r", source.address, keys)
    for _ in range(20):
        destination.step()
        assert destination.pulls.pending("r")
        time.sleep(0.005)
    destination.ledger.set_content(CONTENT)
    destination.wait("r")
    assert [destination.holds(key) for key in keys] == [True] * 6
    destination.pulls.finished("r")


def test_whoever_does_not_know_its_weights_gives_nothing(pair: Pair) -> None:
    source, destination = pair
    keys = make_keys("unknown", 6)
    source.store(keys)
    source.ledger.set_content(b"")
    assert destination.pull("r", source.address, keys) == [False] * 6
    assert destination.meter.misses == {MissReason.CONTENT: 1}
    source.ledger.set_content(CONTENT)
    assert destination.pull("again", source.address, keys) == [True] * 6


def reset(engine: StandIn, content: bytes) -> None:
    """As the manager does it, and what the workers then say of their weights."""
    engine.ledger.set_content(b"")
    engine.ledger.drop_ready()
    engine.ledger.set_epoch(engine.ledger.epoch + 1)
    engine.ledger.set_content(content)


def test_a_peer_that_comes_up_is_found_by_the_next_pull(standin: MakeStandIn) -> None:
    """However long the back-off has become while nothing listened there."""
    port = free_port()
    absent = (PeerAddress("source", "127.0.0.1", port),)
    destination = standin("destination", peers=absent)
    keys = make_keys("late", 4)
    until = time.monotonic() + 3
    while time.monotonic() < until:
        assert destination.pull("early", f"127.0.0.1:{port}", keys) == [False] * 4
    source = standin("source", port=port)
    source.store(keys)
    # Its background tries are seconds apart by now.
    destination.pull_until(source, keys, limit_s=1.0)
