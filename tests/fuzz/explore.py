"""Examples of a hypothesis strategy for a given time."""

import time
from collections.abc import Callable
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

# Each round begins anew with small examples.
EXAMPLES_PER_ROUND = 200
# How long a failing example may be made smaller once the time is up.
SHRINK_S = 30.0

Example = TypeVar("Example")


def explore(
    examine: Callable[[Example], None],
    strategy: SearchStrategy[Example],
    seconds: float,
    first_seed: int,
) -> int:
    """Call `examine` with examples until the time is up; return how many there were."""
    # Runs from the first example on: hypothesis may need a while to come up with it.
    until = 0.0
    shrink_until = 0.0
    examined = 0

    def attempt(example: Example) -> None:
        nonlocal examined, shrink_until, until
        until = until or time.monotonic() + seconds
        if time.monotonic() > (shrink_until or until):
            return
        examined += 1
        try:
            examine(example)
        except BaseException:
            shrink_until = shrink_until or time.monotonic() + SHRINK_S
            raise

    rounds = 0
    while not examined or time.monotonic() < until:
        run = given(strategy)(attempt)
        run = settings(
            max_examples=EXAMPLES_PER_ROUND,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )(run)
        seed(first_seed + rounds)(run)()
        rounds += 1
    return examined
