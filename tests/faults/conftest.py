"""Two stand-in engines with real helpers, and the proof that nothing of them stays."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.leftovers import Leftovers
from tests.support.standin import StandIn

MakeStandIn = Callable[..., StandIn]


@pytest.fixture
def standin() -> Iterator[MakeStandIn]:
    """Make stand-ins that end with the test; fails if anything of theirs is left."""
    before = Leftovers.now()
    with ExitStack() as stack:

        def make(node: str, **options: Any) -> StandIn:
            return stack.enter_context(StandIn(node, **options))

        yield make
    assert before.new() == []


@pytest.fixture
def pair(standin: MakeStandIn) -> tuple[StandIn, StandIn]:
    """A source and a destination that can reach each other."""
    source, destination = standin("source"), standin("destination")
    return source, destination
