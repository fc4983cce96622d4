"""The faults of a run, all of them drawn from its seed.

The same seed gives the same faults with the same parameters after the same pauses. What
they meet depends on the machine's timing, so a fault of mpkv found under one seed may
take some runs of that seed to show again.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# How often each kind comes, relative to the others. Replacing processes costs the
# machine most, and while it goes on there is little to pull from.
WEIGHTS = {
    "kill initiator": 9,
    "kill target": 4,
    "kill control": 5,
    "stop initiator": 8,
    "stop target": 6,
    "stop control": 7,
    "kill engine": 2,
    "restart engine": 2,
    "stop engine": 6,
    "cut link": 14,
    "freeze link": 8,
    "refuse link": 4,
    "fill tier": 5,
    "evict": 8,
    "abort": 14,
    "abandon READ": 10,
    "reset caches": 8,
    "reset one cache": 8,
}

SHORTEST_S = 0.005
LONGEST_S = 1.0
# Some last longer than every patience of the helpers.
OVERLONG_SHARE = 0.03
OVERLONG_S = (4.0, 8.0)
# Of the faults that can be aimed at a pull; a pull takes about so long here.
AIMED_SHARE = 0.7
AIM_S = 0.01


@dataclass(frozen=True)
class Fault:
    """What happens to `engine`, or between it and `other`, `after_s` after the fault before.

    It lasts `for_s` if it has an end; `aim_s` after the beginning of a pull it strikes, if
    not at once; `share` is how much of what there is it takes.
    """

    kind: str
    after_s: float
    engine: str
    other: str
    for_s: float
    aim_s: float | None
    share: float


def schedule(seed: int, engines: Sequence[str], pause_s: float) -> Iterator[Fault]:
    """Faults without end, on average `pause_s` apart."""
    choices = random.Random(seed)
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    while True:
        (kind,) = choices.choices(kinds, weights)
        engine, other = choices.sample(list(engines), 2)
        yield Fault(
            kind,
            after_s=min(choices.expovariate(1 / pause_s), 4 * pause_s),
            engine=engine,
            other=other,
            for_s=_duration(choices),
            aim_s=choices.uniform(0, AIM_S) if choices.random() < AIMED_SHARE else None,
            share=choices.random(),
        )


def _duration(choices: random.Random) -> float:
    if choices.random() < OVERLONG_SHARE:
        return choices.uniform(*OVERLONG_S)
    return math.exp(choices.uniform(math.log(SHORTEST_S), math.log(LONGEST_S)))
