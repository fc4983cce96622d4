"""When helpers leave that vLLM would kill: real signals to this process."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from mpkv.engine.last_second import leave_in_time


@pytest.fixture
def told() -> Iterator[list[int]]:
    """What vLLM's handler, in place while it makes its engine, has been told."""
    numbers: list[int] = []

    def handler(number: int, frame: Any) -> None:
        numbers.append(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, handler)
    yield numbers
    for number, earlier in before.items():
        signal.signal(number, earlier)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_they_leave_at_once(told: list[int], number: signal.Signals) -> None:
    left = threading.Event()
    leave_in_time(1, left.set)
    os.kill(os.getpid(), number)
    assert left.is_set()
    assert told == [number]


def test_without_a_timeout_vllm_kills_them_itself(told: list[int]) -> None:
    left = threading.Event()
    leave_in_time(0, left.set)
    os.kill(os.getpid(), signal.SIGTERM)
    assert told == [signal.SIGTERM]
    assert not left.is_set()


def test_where_vllm_has_no_handler_nothing_changes() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    assert before[signal.SIGINT] is signal.default_int_handler
    leave_in_time(1, lambda: None)
    assert {number: signal.getsignal(number) for number in before} == before
