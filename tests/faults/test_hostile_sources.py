"""A source whose words end the initiator; what everybody else gets meanwhile."""

import msgspec

from tests.faults.conftest import MakeStandIn
from tests.support.hostile import hostile_source, renamed, welcome_of
from tests.support.standin import make_keys


def test_metadata_that_ends_the_initiator_costs_its_sender_only(standin: MakeStandIn) -> None:
    source, destination = standin("source"), standin("destination", deadline_s=5.0)
    keys = make_keys("k", 60)
    source.store(keys)
    destination.pull_until(source, keys[:1])
    real = renamed(welcome_of(standin("bystander")), "evil")
    # The first byte of UCX's own address, its version: UCX aborts at one it does not know.
    damaged = bytearray(real.metadata)
    damaged[real.metadata.index(b"|c") + 10] = 0xFF
    evil = msgspec.structs.replace(real, metadata=bytes(damaged))
    initiators = set()
    with hostile_source(evil) as address:
        for number in range(8):
            initiators.add(destination.helper("initiator").pid)
            destination.start_pull(f"evil {number}", address, make_keys(f"e{number}", 2))
            wanted = keys[number * 4 : number * 4 + 4]
            destination.pull_until(source, wanted, limit_s=10.0)
            destination.wait(f"evil {number}")
            assert not any(destination.holds(key) for key in make_keys(f"e{number}", 2))
            destination.pulls.finished(f"evil {number}")
    assert any("an initiator died of it" in detail for detail in destination.meter.details)
    # Twice, and then never again within the test.
    assert 1 < len(initiators | {destination.helper("initiator").pid}) <= 3
    destination.wait_idle()
