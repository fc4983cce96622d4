"""Many requests for the same blocks, and pulls of a whole tier, over real READs."""

import threading
import time

from mpkv.messages import KeyGroup, MissReason
from tests.faults.conftest import MakeStandIn
from tests.support.standin import StandIn, free_port, make_keys

REQUESTS = [f"r{number}" for number in range(16)]
# A source hands out a quarter of its tier at a time.
BLOCKS = 2048


class Reads:
    """READs of an engine from now on, and their blocks."""

    def __init__(self, engine: StandIn) -> None:
        self._counters = engine.ledger.counters("initiator")
        self._before = self._now()

    def more(self) -> tuple[int, int]:
        reads, blocks = self._now()
        return reads - self._before[0], blocks - self._before[1]

    def _now(self) -> tuple[int, int]:
        return self._counters.value("reads"), self._counters.value("blocks_read")


def connected(standin: MakeStandIn, **options: float) -> tuple[StandIn, StandIn]:
    source = standin("source", blocks=BLOCKS)
    destination = standin("destination", blocks=BLOCKS, **options)
    warm = make_keys("warm", 1)
    source.store(warm)
    destination.pull_until(source, warm)
    return source, destination


def end_all(engine: StandIn) -> None:
    for request in REQUESTS:
        engine.pulls.looked_up(request)
        engine.pulls.finished(request)
    engine.wait_idle()
    assert engine.pulls.claims.taken == 0


def test_sixteen_requests_for_the_same_blocks_are_one_read(standin: MakeStandIn) -> None:
    source, destination = connected(standin)
    keys = make_keys("shared", 256)
    source.store(keys)
    reads = Reads(destination)
    for request in REQUESTS:
        destination.start_pull(request, source.address, keys)
    # He who asked goes, and the others get it nevertheless.
    destination.pulls.finished(REQUESTS[0])
    for request in REQUESTS[1:]:
        destination.wait(request)
        assert all(destination.holds(key) for key in keys)
        assert destination.pulls.adopted(request, keys[255])
    assert reads.more() == (1, 256)
    assert not destination.meter.misses
    end_all(destination)
    assert destination.clean()


def test_sixteen_that_begin_early_are_one_read_too(standin: MakeStandIn) -> None:
    source, destination = connected(standin, head_start=0.125)
    keys = make_keys("shared", 256)
    source.store(keys)
    groups = (KeyGroup(b"".join(keys), 16, 0),)
    reads = Reads(destination)
    begun: list[bool] = []

    def receive() -> None:
        for request in REQUESTS:
            begun.append(destination.pulls.begin(request, source.address, groups, b""))

    thread = threading.Thread(target=receive)
    thread.start()
    # The scheduler's thread takes them in meanwhile.
    while thread.is_alive():
        destination.step()
    thread.join()
    assert begun == [True] * 16
    for request in REQUESTS:
        assert destination.pulls.claim(request)
        destination.wait(request)
        assert all(destination.holds(key) for key in keys)
    assert reads.more() == (1, 256)
    end_all(destination)


def test_when_the_first_fails_one_other_asks_its_own_source(standin: MakeStandIn) -> None:
    source, destination = connected(standin, deadline_s=2.0)
    keys = make_keys("shared", 256)
    source.store(keys)
    reads = Reads(destination)
    destination.start_pull(REQUESTS[0], f"127.0.0.1:{free_port()}", keys)
    # Theirs ends later than that of the first.
    time.sleep(0.5)
    for request in REQUESTS[1:]:
        destination.start_pull(request, source.address, keys)
    for request in REQUESTS:
        destination.wait(request)
    assert all(destination.holds(key) for key in keys)
    assert reads.more() == (1, 256)
    assert sum(destination.meter.misses.values()) == 1
    assert set(destination.meter.missed_blocks.values()) == {256}
    end_all(destination)


def test_a_pull_of_the_whole_tier_and_small_ones_beside_it(standin: MakeStandIn) -> None:
    source = standin("source", blocks=BLOCKS)
    destination = standin("destination", blocks=256)
    large = make_keys("large", 256 + 8)
    small = {f"small {number}": make_keys(f"s{number}", 8) for number in range(8)}
    source.store(large)
    for keys in small.values():
        source.store(keys)
    destination.pull_until(source, small["small 0"])
    destination.ledger.drop_ready()
    destination.start_pull("large", source.address, large)
    for request, keys in small.items():
        assert destination.pull(request, source.address, keys) == [True] * 8
    destination.wait("large")
    assert [destination.holds(key) for key in large] == [True] * 256 + [False] * 8
    assert destination.meter.missed_blocks == {MissReason.NO_SPACE: 8}
    destination.pulls.looked_up("large")
    destination.pulls.finished("large")
    destination.wait_idle()
    assert destination.clean()
    source.wait_clean()
