"""A beat counts only if the agent's lock was free for it, and only once in its time."""

from collections.abc import Iterator

import pytest

from mpkv.memory import Counters, Ledger
from mpkv.messages import Bounds
from mpkv.registration.pulse import Pulse


@pytest.fixture
def counters() -> Iterator[Counters]:
    ledger = Ledger.create(1, 36)
    yield ledger.counters("target")
    ledger.close()


def test_it_beats_once_in_its_time(counters: Counters) -> None:
    pulse = Pulse(lambda: None, counters, Bounds(beat_s=3600.0))
    assert pulse.beat() == 3600.0
    assert 0 < pulse.beat() < 3600.0
    assert counters.value("beats") == 1


def test_there_is_no_beat_while_the_agent_is_stuck(counters: Counters) -> None:
    stuck_at: list[int] = []
    pulse = Pulse(lambda: stuck_at.append(counters.value("beats")), counters, Bounds(beat_s=0.0))
    pulse.beat()
    pulse.beat()
    assert stuck_at == [0, 1]
