"""What is left in every process after peers have come and gone many times: nothing."""

import signal
import time
from contextlib import closing
from dataclasses import dataclass

import psutil

from mpkv.cluster.settings import EngineSettings
from mpkv.control.destination.initiators import MOST_FORGOTTEN
from tests.control.common import free_port
from tests.control.raw import Proxy
from tests.faults.conftest import MakeStandIn
from tests.support.standin import StandIn, make_keys

NAMES = ("control", "target", "initiator")
WARM_UP = 50
CYCLES = 500
RESTARTS = 6
# A session that has just ended is not tried again at once; when its turn comes it may be.
ADDRESSES = 32
# For fragmentation, and the 500 bytes that UCX keeps of every connection.
MEMORY_SLACK = 512 << 10
# An initiator is replaced at a beat; until then a few more peers come and go.
LATE = 64
LANES = EngineSettings("any").lanes
CLOSED_S = 10.0


@dataclass(frozen=True)
class Size:
    memory: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, process: psutil.Process) -> "Size":
        memory = process.memory_info()
        return cls(memory.rss - memory.shared, process.num_fds(), process.num_threads())

    def grown(self, before: "Size", descriptors: int = 0) -> bool:
        """Whether this is more than `before`, and than `descriptors` more of those."""
        return (
            self.memory > before.memory + MEMORY_SLACK
            or self.descriptors > before.descriptors + descriptors
            or self.threads > before.threads
        )


def test_500_reconnections_leave_nothing_behind(standin: MakeStandIn) -> None:
    """The source lives on, but cannot be reached for a moment, again and again."""
    source, destination = standin("source"), standin("destination")
    keys = make_keys("k", 4)
    source.store(keys)
    # Not where this machine's outgoing connections begin: their ports are others'.
    addresses = [(f"127.0.1.{number + 1}", free_port()) for number in range(ADDRESSES)]
    fresh = {"source target": _size(source, "target")}
    fresh["destination initiator"] = _size(destination, "initiator")
    before: dict[str, Size] = {}
    for cycle in range(CYCLES):
        if cycle == WARM_UP:
            before = _helper_sizes(source, destination)
        lost = destination.ledger.counters("control").value("peers_lost")
        with closing(Proxy(source.port, addresses[cycle % ADDRESSES])) as proxy:
            hits = destination.pull(f"r{cycle}", proxy.address, keys)
            # Also when the initiator has just been replaced.
            assert hits == [True] * len(keys), destination.meter.details
        destination.wait_count("control", "peers_lost", lost + 1)
        destination.ledger.drop_ready()
        if cycle % 20 == 0:
            _check_connections(fresh, _helper_sizes(source, destination))
    _check_connections(fresh, _helper_sizes(source, destination))
    _wait_flat({name: before[name] for name in before if name not in fresh}, source, destination)
    recycled = destination.ledger.counters("control").value("initiators_recycled")
    assert CYCLES // (MOST_FORGOTTEN + LATE) <= recycled <= CYCLES // MOST_FORGOTTEN


def test_restarted_peers_leave_nothing_behind(standin: MakeStandIn) -> None:
    """Each life of the other engine pulls from here and is pulled from."""
    engine = standin("engine")
    keys = make_keys("here", 4)
    engine.store(keys)
    before: dict[str, Size] = {}
    port = free_port()
    for life in range(RESTARTS):
        with StandIn("other", port=port) as other:
            theirs = make_keys(f"there {life}", 4)
            other.store(theirs)
            engine.pull_until(other, theirs)
            assert other.pull("r", engine.address, keys) == [True] * 4
        engine.wait_count("control", "peers_lost", life + 1)
        engine.wait_clean()
        if life == 1:
            before = _helper_sizes(engine)
    _wait_flat(before, engine)


def test_restarted_helpers_leave_nothing_in_the_engine(standin: MakeStandIn) -> None:
    engine = standin("engine")
    before = Size.of(psutil.Process())
    for turn in range(RESTARTS):
        for name in ("initiator", "control"):
            old = engine.helper(name)
            old.signal(signal.SIGKILL)
            engine.wait_replaced(name, old)
        engine.helper("initiator")
        engine.step()
        if turn == 1:
            before = Size.of(psutil.Process())
    assert not Size.of(psutil.Process()).grown(before)


def _check_connections(fresh: dict[str, Size], now: dict[str, Size]) -> None:
    """UCX keeps one for each time that a lane removed a peer, until its initiator ends."""
    for name, size in fresh.items():
        # The first peer is no leak: it costs memory, and two or three descriptors.
        allowed = Size(size.memory + LANES * (1 << 20), size.descriptors + LANES * 3, size.threads)
        connections = LANES * (MOST_FORGOTTEN + LATE)
        assert not now[name].grown(allowed, connections), (name, size, now[name])


def _wait_flat(before: dict[str, Size], *engines: StandIn) -> None:
    """Until no helper is bigger than it was: what has ended may take a moment to be closed."""
    until = time.monotonic() + CLOSED_S
    while True:
        after = _helper_sizes(*engines)
        grown = {name: (size, after[name]) for name, size in before.items()}
        grown = {name: pair for name, pair in grown.items() if pair[1].grown(pair[0])}
        if not grown:
            return
        assert time.monotonic() < until, grown
        time.sleep(0.05)


def _helper_sizes(*engines: StandIn) -> dict[str, Size]:
    return {
        f"{engine.settings.node} {name}": _size(engine, name)
        for engine in engines
        for name in NAMES
    }


def _size(engine: StandIn, name: str) -> Size:
    while True:
        try:
            return Size.of(psutil.Process(engine.helper(name).pid))
        except psutil.NoSuchProcess:
            # Replaced this moment.
            continue
