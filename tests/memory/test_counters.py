"""Counters: one page per role, seen by every process."""

import pytest

from mpkv.memory import Ledger
from mpkv.memory.counters import NAMES


def test_counters_are_seen_by_other_processes_and_kept_apart() -> None:
    engine = Ledger.create(1, 36)
    control = Ledger.attach(engine.fd)
    for number, (role, names) in enumerate(NAMES.items()):
        assert engine.counters(role).read() == dict.fromkeys(names, 0)
        counters = control.counters(role)
        for position, name in enumerate(names):
            counters.add(name, 1000 * number + position)
            counters.add(name)
    for number, (role, names) in enumerate(NAMES.items()):
        assert list(engine.counters(role).read().values()) == [
            1000 * number + position + 1 for position in range(len(names))
        ]
    control.close()
    engine.close()


def test_an_unknown_name_or_a_negative_amount_is_refused() -> None:
    engine = Ledger.create(1, 36)
    counters = engine.counters("engine")
    with pytest.raises(KeyError):
        counters.add("no such counter")
    with pytest.raises(KeyError):
        engine.counters("no such role")
    with pytest.raises(OverflowError):
        counters.add("pulls", -1)
    with pytest.raises(IndexError):
        engine.counter_add(4, 0, 1)
    with pytest.raises(IndexError):
        engine.counter_read(0, 512)
    assert not any(counters.read().values())
    engine.close()
