"""READs between real processes: right bytes, one answer each, refusals that say why."""

import itertools
import random
from collections.abc import Callable

import msgspec
import pytest

from mpkv.messages import Read, ReadDone, ReadFailed
from tests.registration.harness import Helper, Initiator, Target

MIB = 1 << 20
StartTarget = Callable[..., Target]


def test_one_block(initiator: Initiator, start_target: StartTarget) -> None:
    target = start_target()
    initiator.add(target)
    initiator.fetched(target, [7], [3])


def test_many_blocks_in_random_order(helpers: list[Helper], start_target: StartTarget) -> None:
    initiator, target = Initiator(blocks=1200), start_target(blocks=1100)
    helpers.append(initiator)
    initiator.add(target)
    chance = random.Random(5)
    for count in (1024, 100, 17):
        initiator.fetched(
            target, chance.sample(range(1100), count), chance.sample(range(1200), count)
        )


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_large_reads_shared_by_lanes(
    helpers: list[Helper], start_target: StartTarget, lanes: int
) -> None:
    initiator = Initiator(blocks=72, block_bytes=MIB, lanes=lanes)
    helpers.append(initiator)
    peers = [start_target(block_bytes=MIB, seed=seed) for seed in (1, 2)]
    for peer in peers:
        initiator.add(peer)
    chance = random.Random(lanes)
    for _ in range(10):
        # All at once, into slots of their own.
        local = chance.sample(range(72), 72)
        remote = [chance.sample(range(64), 36) for _ in peers]
        cuts = [0, 1, chance.randrange(2, 12), 36]
        asked = [
            (peer, theirs[low:high], local[36 * side :][low:high])
            for side, (peer, theirs) in enumerate(zip(peers, remote, strict=True))
            for low, high in itertools.pairwise(cuts)
        ]
        chance.shuffle(asked)
        reads = [initiator.read(peer.instance, theirs, ours) for peer, theirs, ours in asked]
        for read, (peer, theirs, ours) in zip(reads, asked, strict=True):
            assert isinstance(initiator.answer(read), ReadDone)
            initiator.check(peer, theirs, ours)
        assert all(initiator.answers(read) == 1 for read in reads)
        initiator.results.clear()


def test_blocks_that_were_not_asked_for_stay_as_they_are(
    initiator: Initiator, start_target: StartTarget
) -> None:
    target = start_target()
    initiator.add(target)
    initiator.fetched(target, [5, 9], [11, 13])
    for block in (0, 10, 12, 14, 63):
        start = block * initiator.block_bytes
        row = initiator.tier[start : start + initiator.block_bytes]
        assert row == bytes(initiator.block_bytes)


def test_reads_sent_with_the_peer_wait_until_it_is_added(
    initiator: Initiator, start_target: StartTarget
) -> None:
    target = start_target()
    initiator.send(target.as_peer())
    reads = [initiator.read(target.instance, [i], [i]) for i in range(20)]
    for i, read in enumerate(reads):
        assert isinstance(initiator.answer(read), ReadDone)
        initiator.check(target, [i], [i])
    assert all(initiator.answers(read) == 1 for read in reads)


def test_two_peers_keep_their_bytes_apart(initiator: Initiator, start_target: StartTarget) -> None:
    first, second = start_target(seed=1), start_target(seed=2)
    initiator.add(first)
    initiator.add(second)
    initiator.fetched(first, [1, 2], [1, 2])
    initiator.fetched(second, [1, 2], [3, 4])
    initiator.check(first, [1, 2], [1, 2])


def _refused(initiator: Initiator, read: int) -> str:
    answer = initiator.answer(read)
    assert isinstance(answer, ReadFailed)
    assert not answer.posted
    initiator.settled()
    assert initiator.answers(read) == 1
    return answer.detail


def test_bad_block_ids_are_refused(initiator: Initiator, start_target: StartTarget) -> None:
    target = start_target(blocks=40)
    initiator.add(target)
    reads = {
        "remote block 40 is beyond the 40 blocks": initiator.read(target.instance, [1, 40], [1, 2]),
        "local block 64 is beyond the 64 blocks": initiator.read(target.instance, [1, 2], [1, 64]),
        "remote block 4294967295 is beyond": initiator.read(target.instance, [2**32 - 1], [1]),
        "found 8 and 4 bytes": initiator.read(target.instance, [1, 2], [1]),
        "found 0 and 0 bytes": initiator.read(target.instance, [], []),
    }
    for reason, read in reads.items():
        assert reason in _refused(initiator, read)
    initiator.send(Read(77, target.instance, b"abc", b"abc"))
    assert "found 3 and 3 bytes" in _refused(initiator, 77)
    initiator.fetched(target, [39], [63])


def test_an_unknown_peer_is_refused(initiator: Initiator) -> None:
    assert "no peer ghost was added" in _refused(initiator, initiator.read("ghost", [0], [0]))


def test_malformed_records_are_dropped(initiator: Initiator, start_target: StartTarget) -> None:
    target = start_target()
    initiator.add(target)
    for record in (
        b"",
        b"\xc1",
        msgspec.msgpack.encode(["frobnicate", 1]),
        msgspec.msgpack.encode(["read", "seven", "x", b"", b""]),
        msgspec.msgpack.encode({"read": 1}),
    ):
        initiator.push(record)
    initiator.fetched(target, [2], [2])
    assert initiator.counted()["records_dropped"] == 5


def test_counters_add_up(initiator: Initiator, start_target: StartTarget) -> None:
    target = start_target()
    initiator.add(target)
    initiator.fetched(target, [1, 2, 3], [1, 2, 3])
    counted = initiator.counted()
    assert counted["peers_added"] == 1
    assert counted["reads"] == 1
    assert counted["reads_failed"] == 0
    assert counted["blocks_read"] == 3
    assert counted["bytes_read"] == 3 * target.block_bytes
    assert counted["reads_refused"] == 1
