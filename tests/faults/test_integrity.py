"""A byte changes where nobody writes: what is checked is not used, and says why."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mpkv.cluster.settings import Integrity
from mpkv.control.checksums import is_sampled
from mpkv.messages import MissReason
from tests.faults.conftest import MakeStandIn
from tests.support.standin import StandIn, make_keys

BLOCK_BYTES = 96 << 10
CHECKED = (Integrity.SAMPLED, Integrity.FULL)


Make = Callable[[str, Integrity], StandIn]


@pytest.fixture
def make(standin: MakeStandIn) -> Make:
    return lambda node, integrity: standin(node, block_bytes=BLOCK_BYTES, integrity=integrity)


def flip(engine: StandIn, key: bytes) -> None:
    """One bit of one byte of the block of `key`."""
    at = engine.ledger.find(key) * BLOCK_BYTES + BLOCK_BYTES // 2
    engine.tier[at] ^= 1


def wait_hashed(engine: StandIn, count: int, limit_s: float = 20.0) -> None:
    until = time.monotonic() + limit_s
    while engine.ledger.counters("control").read()["blocks_hashed"] < count:
        assert time.monotonic() < until, "the blocks were not hashed"
        time.sleep(0.005)


def sampled_first(prefix: str, count: int) -> list[bytes]:
    """Keys of which the first is in the sample, and others are not."""
    many = make_keys(prefix, 50 * count)
    sampled = next(key for key in many if is_sampled(key))
    return [sampled, *[key for key in many if not is_sampled(key)][: count - 1]]


@pytest.mark.parametrize("integrity", CHECKED)
def test_a_flipped_byte_is_found_and_the_request_computes_locally(
    make: Make, capfd: pytest.CaptureFixture[str], integrity: Integrity
) -> None:
    source, destination = make("source", integrity), make("destination", integrity)
    keys = sampled_first("prompt", 20)
    sound = sampled_first("sound", 20)
    source.store(keys + sound)
    wait_hashed(source, 40 if integrity is Integrity.FULL else 2)
    flip(source, keys[0])
    assert destination.pull("r1", source.address, keys) == [False] * 20
    assert destination.meter.misses == {MissReason.CORRUPTED: 1}
    checked = 20 if integrity is Integrity.FULL else 1
    assert f"1 of {checked} blocks from source ({source.address})" in destination.meter.details[0]
    counters = destination.ledger.counters("control").read()
    assert counters["missed_corrupted"] == counters["blocks_corrupted"] == 1
    logged = [line for line in capfd.readouterr().err.splitlines() if "wrong bytes" in line]
    assert len(logged) == 1
    for part in ("WARNING", "[destination]", f"source ({source.address})", f"1 of {checked}"):
        assert part in logged[0]
    assert f"key {keys[0].hex()[:16]}..." in logged[0]
    # Its slots are free again, and whoever is well is pulled from as before.
    assert destination.pull("r2", source.address, sound) == [True] * 20
    destination.wait_idle()
    destination.wait_clean()
    source.wait_clean()


@pytest.mark.parametrize("integrity", CHECKED)
def test_sound_blocks_are_hits(make: Make, integrity: Integrity) -> None:
    source, destination = make("source", integrity), make("destination", integrity)
    keys = sampled_first("prompt", 60)
    # Some are hashed before the pull, some from the grant on.
    source.store(keys[:30])
    wait_hashed(source, 30 if integrity is Integrity.FULL else 1)
    source.store(keys[30:])
    assert destination.pull("r1", source.address, keys) == [True] * 60
    assert destination.meter.blocks == 60
    assert not destination.meter.misses
    checked = destination.ledger.counters("control").read()["blocks_checked"]
    assert checked == (60 if integrity is Integrity.FULL else 1)
    destination.wait_idle()
    destination.wait_clean()
    source.wait_clean()


def test_a_source_that_checks_nothing_itself_answers_who_asks(make: Make) -> None:
    source, destination = make("source", Integrity.OFF), make("destination", Integrity.FULL)
    assert not hashes(source)
    keys = make_keys("prompt", 20)
    source.store(keys)
    assert destination.pull("r1", source.address, keys) == [True] * 20
    assert destination.ledger.counters("control").read()["blocks_checked"] == 20
    # From the first pull on it knows what it has.
    third = make("third", Integrity.FULL)
    flip(source, keys[3])
    assert third.pull("r1", source.address, keys) == [False] * 20
    assert third.meter.misses == {MissReason.CORRUPTED: 1}


def test_what_was_pulled_is_checked_when_it_is_pulled_on(make: Make) -> None:
    """Flipped after the pull, at the destination, which others then pull from."""
    source, middle, last = (make(node, Integrity.FULL) for node in ("source", "middle", "last"))
    keys = make_keys("prompt", 12)
    source.store(keys)
    assert middle.pull("r1", source.address, keys) == [True] * 12
    flip(middle, keys[11])
    assert last.pull("r1", middle.address, keys) == [False] * 12
    assert last.meter.misses == {MissReason.CORRUPTED: 1}
    assert last.pull("r2", source.address, keys) == [True] * 12


def test_without_checking_nothing_is_hashed(make: Make) -> None:
    source, destination = make("source", Integrity.OFF), make("destination", Integrity.OFF)
    keys = make_keys("prompt", 20)
    source.store(keys)
    assert destination.pull("r1", source.address, keys) == [True] * 20
    for engine in (source, destination):
        assert engine.ledger.counters("control").read()["blocks_hashed"] == 0
        assert not hashes(engine)
    checking = make("checking", Integrity.FULL)
    checking.store(keys)
    wait_hashed(checking, 20)
    assert hashes(checking)


def hashes(engine: StandIn) -> bool:
    """Whether its control plane has mapped the tier, which only hashing needs."""
    maps = Path(f"/proc/{engine.helper('control').pid}/maps").read_text()
    return "standin-tier" in maps
