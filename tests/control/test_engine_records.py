"""What an engine may say that makes no sense."""

import math

from mpkv.messages import MissReason, PullFailed
from tests.control.common import keys
from tests.control.harness import Plane


def test_a_pull_whose_times_make_no_sense_ends_nevertheless(pair: tuple[Plane, Plane]) -> None:
    source, destination = pair
    wanted = keys("a", 2)
    source.store(wanted)
    for started in (math.nan, math.inf, 1e308):
        pull = destination.pull(source.address, wanted, started=started, deadline_s=math.inf)
        _failed(destination, pull, MissReason.REFUSED)
    never = destination.pull(source.address, wanted, deadline_s=math.nan)
    _failed(destination, never, MissReason.TIMED_OUT)
    assert destination.fetch(source.address, wanted) == [0, 1]
    assert not destination.count("dropped_by_fault")


def _failed(plane: Plane, pull: int, reason: MissReason) -> None:
    answer = plane.answer(pull)
    assert isinstance(answer, PullFailed)
    assert answer.reason is reason
