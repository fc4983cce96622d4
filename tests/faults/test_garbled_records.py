"""Records between an engine and its control plane that no sane process would write."""

import pytest

from tests.support.standin import StandIn, make_keys


@pytest.mark.parametrize("record", [b"", b"\xc1", b"\x92\xa6cancel\xa1x", b"\x91" * 100_000])
def test_a_record_that_cannot_be_read_costs_the_control_plane_only(
    pair: tuple[StandIn, StandIn], record: bytes
) -> None:
    source, destination = pair
    before, after = make_keys("before", 4), make_keys("after", 4)
    source.store(before + after)
    assert destination.pull("r", source.address, before) == [True] * 4
    old = destination.helper("control")
    link = destination.supervisor.link
    assert link is not None
    assert link.to_control.push(record)
    assert destination.pull("one more", source.address, after) in ([True] * 4, [False] * 4)
    destination.pull_until(source, after)
    assert destination.helper("control").pid != old.pid
    destination.wait_idle()
    assert destination.clean()
    source.wait_clean()
