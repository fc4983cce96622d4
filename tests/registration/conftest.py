"""Real registration processes; each test must leave nothing of them behind."""

from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.registration.harness import Helper, Initiator, Target


@pytest.fixture
def helpers() -> Iterator[list[Helper]]:
    started: list[Helper] = []
    yield started
    for helper in started:
        helper.close()
    assert psutil.Process().children(recursive=True) == []


@pytest.fixture
def initiator(helpers: list[Helper]) -> Initiator:
    helper = Initiator()
    helpers.append(helper)
    return helper


@pytest.fixture
def start_target(helpers: list[Helper]) -> Callable[..., Target]:
    """`start_target(seed=..., blocks=...)`; tests do not end it."""

    def start(**geometry: int) -> Target:
        helper = Target(**geometry)
        helpers.append(helper)
        return helper

    return start
