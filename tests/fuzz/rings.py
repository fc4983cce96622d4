"""Rings into a control plane: an initiator that says anything, requests that name any peer."""

from hypothesis import strategies as st
from msgspec import Struct

from mpkv.messages import (
    InitiatorReady,
    PeerAdded,
    PeerFailed,
    Pulled,
    PullFailed,
    ReadDone,
    ReadFailed,
    TargetReady,
)
from tests.control.common import keys, wait_for
from tests.control.harness import Plane
from tests.fuzz.explore import explore
from tests.fuzz.shapes import bytes_of, numbers, texts

HELD = keys("held", 4)
DEADLINE_S = 0.5
SOURCE = "the source"

_instances = st.just(SOURCE) | texts
_reads = st.integers(0, 40) | numbers
_seconds = st.floats(allow_nan=True)
_records: st.SearchStrategy[Struct] = st.one_of(
    st.builds(ReadDone, _reads, _seconds),
    st.builds(ReadFailed, _reads, texts, st.booleans()),
    st.builds(PeerAdded, _instances, _seconds),
    st.builds(PeerFailed, _instances, texts),
    st.builds(InitiatorReady, texts),
    st.builds(TargetReady, texts, st.binary(max_size=20), numbers),
)
# Numbers, not names: whoever is asked for a name may take long to say that there is none.
_hosts = st.sampled_from(["127.0.0.1", "[::1]", "::1", "0.0.0.0", "256.1.1.1", "127.0.0.1%lo", "*"])
_ports = st.sampled_from(["1", "0", "65536", "-1", "99999999999", "", " 1", "1e3", "*"])
_peers = st.tuples(_hosts, _ports).map(":".join) | st.sampled_from(["", ":", "x" * 400, "a\0b:1"])
_cases = st.tuples(st.lists(bytes_of(_records), max_size=8), st.lists(_peers, max_size=3))


def _examine(source: Plane, plane: Plane, case: tuple[list[bytes], list[str]]) -> None:
    records, peers = case
    initiator = plane.manual()
    pulls = [plane.pull(source.address, HELD)]
    pulls += [plane.pull(peer, HELD) for peer in peers]
    for record in records:
        assert initiator._producer.push(record)
    plane.automatic()
    for pull in pulls:
        assert isinstance(plane.answer(pull), Pulled | PullFailed)
    if not initiator.process.alive():
        plane.new_initiator()
    plane.records.clear()
    assert plane.process.poll() is None, plane.log()[-3000:]
    assert not plane.count("dropped_by_fault"), plane.log()[-3000:]


def run(seconds: float, seed: int) -> int:
    with Plane("source", instance=SOURCE) as source, Plane("plane", deadline_s=DEADLINE_S) as plane:
        source.wait_ready()
        plane.wait_ready()
        source.store(HELD)
        examined = explore(lambda case: _examine(source, plane, case), _cases, seconds, seed)
        # What a fresh initiator means: no READ of an earlier one can write any more.
        plane.new_initiator()

        def recovered() -> bool:
            return plane.fetch(source.address, HELD) == [0, 1, 2, 3]

        wait_for(recovered, "pulls to work again")
        wait_for(lambda: plane.ledger.counts()["landing"] == 0, "all slots to be given back")
    return examined
