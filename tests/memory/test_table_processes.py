"""Engine and control plane as real processes on one ledger and one tier."""

import os
import random
import time
from collections.abc import Iterator

import pytest

from mpkv.memory import (
    DUPLICATE,
    FILLING,
    PUBLISHED,
    Ledger,
    block_ids,
    create_segment,
    map_segment,
)
from tests.memory.peers import BLOCK_BYTES, KEY_SIZE, fill, make_key, peer

BLOCKS = 64
KEYS = 200


class Tier:
    """An engine that keeps storing random blocks, each filled with its key."""

    def __init__(self) -> None:
        self.ledger = Ledger.create(BLOCKS, KEY_SIZE)
        self.data_fd = create_segment("test-tier", BLOCKS * BLOCK_BYTES)
        self.data = memoryview(map_segment(self.data_fd))
        self.keys = [make_key(number) for number in range(KEYS)]
        self.rng = random.Random(5)

    def store(self) -> None:
        count = self.rng.randrange(1, 8)
        allocated = self.ledger.allocate(count, FILLING)
        if allocated is None:
            return
        slots, evicted = allocated
        assert all(evicted[i : i + KEY_SIZE] in self.keys for i in range(0, len(evicted), KEY_SIZE))
        chosen = self.rng.choices(self.keys, k=count)
        for block, key in zip(memoryview(block_ids(slots)).cast("I"), chosen, strict=True):
            fill(self.data, block, key)
        results = self.ledger.publish(slots, b"".join(chosen), pin=False)
        assert set(results) <= {PUBLISHED, DUPLICATE}
        if self.rng.random() < 0.2:
            self.ledger.free(slots[:8])
        if self.rng.random() < 0.005:
            self.ledger.drop_ready()

    def close(self) -> None:
        self.data.release()
        os.close(self.data_fd)
        self.ledger.close()


@pytest.fixture
def tier() -> Iterator[Tier]:
    tier = Tier()
    yield tier
    tier.close()


def test_a_pinned_block_holds_its_key_whatever_the_engine_does(tier: Tier) -> None:
    wanted = 20_000
    with peer("pin", KEYS, 1, wanted, fds=(tier.ledger.fd, tier.data_fd)) as control:
        give_up = time.monotonic() + 30
        while control.poll() is None:
            tier.store()
            assert time.monotonic() < give_up
        assert control.returncode == 0
    assert tier.ledger.counts()["control_pins"] == 0


def test_a_content_is_whole_and_never_of_before_a_reset_that_was_seen(tier: Tier) -> None:
    with peer("know", 20_000, fds=(tier.ledger.fd,)) as control:
        give_up = time.monotonic() + 30
        while control.poll() is None:
            epoch = tier.ledger.epoch
            for _ in range(20):
                tier.ledger.set_content(2 * epoch.to_bytes(8))
            tier.ledger.set_content(b"")
            tier.ledger.set_epoch(epoch + 1)
            assert time.monotonic() < give_up
        assert control.returncode == 0


@pytest.mark.parametrize("seed", range(8))
def test_the_pins_of_a_killed_control_plane_are_taken_back(tier: Tier, seed: int) -> None:
    for _ in range(30):
        tier.store()
    with peer("pin", KEYS, seed, 1 << 60, fds=(tier.ledger.fd, tier.data_fd)) as control:
        give_up = time.monotonic() + 30
        while tier.ledger.counts()["control_pins"] == 0:
            assert time.monotonic() < give_up
        for _ in range(random.Random(seed).randrange(200)):
            tier.store()
        control.kill()
        control.wait(10)
    assert tier.ledger.counts()["control_pins"] == tier.ledger.zero_control_pins()
    tier.ledger.drop_ready()
    tier.ledger.reclaim()
    found = tier.ledger.counts()
    assert found == dict.fromkeys(found, 0) | {"free": BLOCKS}
