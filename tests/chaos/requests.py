"""The requests of one engine: whom it pulls from, and what it finds when they end."""

import random
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from mpkv.messages import KeyGroup
from tests.chaos.blocks import Blocks
from tests.chaos.orders import Counts, Endless, Start
from tests.chaos.pattern import prompt
from tests.support.standin import StandIn

# Of each engine, about half of its tier.
PROMPTS = 8
OPEN_REQUESTS = 4
PAUSE_S = 0.02
# After a miss its source is left alone for a while, as a router would.
MISSED_PAUSE_S = 0.25
# How long after its deadline a request may still wait.
MARGIN_S = 1.0
LINGER_S = 0.02
OF_ANOTHER = 0.05
COMPUTED_AFTER_MISS = 0.15
# So often another request comes at once for the same, and one wants all prompts of an engine.
CROWDED = 0.3
LARGE = 0.05
# Of the pulls: begun on a thread that stands for vLLM's input thread; and of those, for requests
# that the scheduler then never hears of.
EARLY = 0.5
REJECTED = 0.05


@dataclass
class Request:
    """Waits for a pull from `source` of the last `wanted` of `keys`."""

    name: str
    source: str
    keys: list[bytes]
    wanted: int
    deadline: float
    on_end: Callable[[bool], None] | None


@dataclass
class Arriving:
    """A request that is with the input thread, and what the scheduler is to begin else."""

    request: Request
    begun: Future[bool]
    begin: Callable[[], None]


class Requests:
    def __init__(
        self,
        start: Start,
        engine: StandIn,
        blocks: Blocks,
        choices: random.Random,
        tell: Callable[[Endless], None],
    ) -> None:
        self.counts = Counts()
        self._start = start
        self._engine = engine
        self._blocks = blocks
        self._choices = choices
        self._tell = tell
        self._open: list[Request] = []
        # Whose blocks have been looked up and may still be in use: (until, name).
        self._lingering: list[tuple[float, str]] = []
        self._input = ThreadPoolExecutor(1, "input")
        self._arriving: deque[Arriving] = deque()
        self._number = 0
        self._next_at = 0.0
        self._spared: dict[str, float] = {}

    @property
    def idle(self) -> bool:
        return not (self._open or self._lingering or self._arriving)

    def begin_some(self) -> bool:
        """Begin a request if it is time for one; say whether a pull has begun."""
        now = time.monotonic()
        if now < self._next_at or len(self._open) >= OPEN_REQUESTS:
            return False
        self._next_at = now + self._choices.expovariate(1 / PAUSE_S)
        sources = [s for s in self._start.sources if self._spared.get(s, 0.0) <= now]
        if not sources:
            return False
        source = self._choices.choice(sources)
        # Now and then of somebody who had to pull it first.
        owner = source if self._choices.random() > OF_ANOTHER else self._choices.choice(sources)
        keys = prompt(owner, self._choices.randrange(PROMPTS))
        if self._choices.random() < LARGE:
            keys = [key for number in range(PROMPTS) for key in prompt(owner, number)]
        begun = self.pull(source, keys)
        while self._choices.random() < CROWDED:
            self.pull(self._choices.choice(sources), keys)
        return begun

    def pull(
        self, source: str, keys: list[bytes], on_end: Callable[[bool], None] | None = None
    ) -> bool:
        """Pull what is missing of `keys`; False if nothing is."""
        present = self._engine.ledger.lookup_prefix(b"".join(keys))
        wanted = len(keys) - present
        if not wanted:
            for key in keys:
                self._blocks.hit(key)
            return False
        self._number += 1
        name = f"{self._start.tag}/{self._number}"
        groups = (KeyGroup(b"".join(keys[present:]), 16, 0),)
        deadline = time.monotonic() + self._engine.settings.deadline_s
        request = Request(name, source, keys, wanted, deadline, on_end)
        pull = (name, self._start.sources[source], groups, b"".join(keys[:present]))
        self.counts.pulls += 1
        if self._choices.random() < EARLY:
            begun = self._input.submit(self._engine.pulls.begin, *pull)
            arriving = Arriving(request, begun, lambda: self._engine.pulls.start(*pull))
            self._arriving.append(arriving)
        else:
            self._engine.pulls.start(*pull)
            self._open.append(request)
        return True

    def _arrive(self) -> None:
        while self._arriving and self._arriving[0].begun.done():
            arriving = self._arriving.popleft()
            request = arriving.request
            begun = arriving.begun.result()
            if begun and request.on_end is None and self._choices.random() < REJECTED:
                continue
            claimed = self._engine.pulls.claim(request.name)
            if claimed and not begun:
                self._tell(Endless(f"request {request.name} claimed what had not begun"))
            if not claimed:
                arriving.begin()
            # That of a pull counts from its own beginning: now, or a while ago. The engine may
            # have been stopped since the request was made.
            request.deadline = time.monotonic() + self._engine.settings.deadline_s
            self._open.append(request)

    def abort(self) -> None:
        for request in self._open:
            self._engine.pulls.finished(request.name)
            if request.on_end is not None:
                request.on_end(False)
        self._open.clear()

    def step(self) -> None:
        self._arrive()
        self._engine.step()
        now = time.monotonic()
        for request in self._open[:]:
            if not self._engine.pulls.pending(request.name):
                self._open.remove(request)
                self._look_up(request, now)
            elif now > request.deadline + MARGIN_S:
                self._open.remove(request)
                self._tell(Endless(f"request {request.name} waits for {request.source}"))
        for until, name in self._lingering[:]:
            if until <= now:
                self._lingering.remove((until, name))
                self._engine.pulls.finished(name)

    def _look_up(self, request: Request, now: float) -> None:
        hits = [self._blocks.hit(key) for key in request.keys]
        found = sum(hits[-request.wanted :])
        if found == request.wanted:
            self.counts.full += 1
        elif found:
            self.counts.partial += 1
        else:
            self._spared[request.source] = now + MISSED_PAUSE_S
        self._blocks.begin_load([key for key, hit in zip(request.keys, hits, strict=True) if hit])
        self._engine.pulls.looked_up(request.name)
        self._lingering.append((now + self._choices.uniform(0, LINGER_S), request.name))
        if request.on_end is not None:
            request.on_end(found == request.wanted)
        elif not all(hits) and self._choices.random() < COMPUTED_AFTER_MISS:
            self._blocks.begin_store(request.keys)
