"""Request traces: one JSON line for each request, as in Mooncake's published ones.

`[seconds, input tokens, output tokens, [block ids]]`: an id names a block of the prompt together
with all blocks before it, so that equal ids are equal prefixes.
"""

import heapq
import random
from itertools import count
from pathlib import Path

import msgspec

from mpkv.errors import ConfigRefused

LONGEST_LINE = 8 << 20
MOST_REQUESTS = 1_000_000

Request = tuple[int, ...]

_Line = tuple[float, int, int, tuple[int, ...]]
_decode = msgspec.json.Decoder(_Line).decode


def load_trace(path: Path) -> list[Request]:
    """The block ids of each request, in order; requests without blocks are left out.

    Raises ConfigRefused naming the file and the line.
    """
    requests: list[Request] = []
    try:
        with path.open("rb") as file:
            for number in range(1, MOST_REQUESTS + 1):
                line = file.readline(LONGEST_LINE)
                if not line:
                    break
                if line.strip():
                    requests.append(_parse(path, number, line))
    except OSError as error:
        raise ConfigRefused(
            f"{path}: cannot be read ({error.strerror}); name a trace of requests."
        ) from None
    requests = [request for request in requests if request]
    if not requests:
        raise ConfigRefused(f"{path}: expected requests, found none; name another trace.")
    return requests


def _parse(path: Path, number: int, line: bytes) -> Request:
    try:
        return _decode(line)[3]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigRefused(
            f"{path}, line {number}: expected [seconds, input tokens, output tokens, [block ids]], "
            f"found something else ({error}); correct the line or name another trace."
        ) from None


def generate_trace(requests: int, seed: int = 1) -> list[Request]:
    """Chats of several turns, of which most end soon, and documents that many ask about."""
    choices = random.Random(seed)
    ids = count()

    def fresh(least: int, most: int) -> Request:
        return tuple(next(ids) for _ in range(choices.randint(least, most)))

    systems = [fresh(2, 6) for _ in range(8)]
    documents = [fresh(10, 60) for _ in range(200)]
    turns: list[tuple[float, int, Request]] = []
    made: list[Request] = []
    for now in range(requests):
        if len(made) >= requests:
            break
        while turns and turns[0][0] <= now:
            _follow(made, turns, choices, now, heapq.heappop(turns)[2], fresh(1, 6))
        begin = choices.choice(systems)
        if choices.random() < 0.2:
            begin = documents[min(int(choices.paretovariate(0.8)) - 1, len(documents) - 1)]
        _follow(made, turns, choices, now, begin, fresh(1, 40))
    return made[:requests]


def _follow(
    made: list[Request],
    turns: list[tuple[float, int, Request]],
    choices: random.Random,
    now: int,
    before: Request,
    new: Request,
) -> None:
    """One request, and perhaps the next turn of its chat."""
    made.append(before + new)
    if choices.random() < 0.5:
        wait = choices.expovariate(1 / 250)
        heapq.heappush(turns, (now + wait, len(made), before + new))
