"""One run: a calm, a storm, and then everything has to be as it was before."""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil

from tests.e2e.servers import Server
from tests.soak.faults import WEIGHTS, Storm, helpers, until
from tests.soak.load import Load
from tests.soak.prompts import Prompt
from tests.soak.tally import Tally

# Of the time: without faults, so that the load alone is seen to be answered right.
CALM_SHARE = 0.25
# By then so many requests as there are must have driven each other out.
CALM_AT_MOST_S = 90.0
# A short storm goes on until everything has happened once.
ALL_KINDS_S = 90.0
PROGRESS_S = 10.0
SETTLE_S = 40.0
# Descriptors of an engine that come and go.
SLACK_FDS = 6
HELD = ("landing", "filling", "draining", "control_pins", "engine_pins")
ROLES = {"control", "target", "initiator"}


class Runner:
    """Works on two servers that are up and have equal counts of resets."""

    def __init__(self, servers: Sequence[Server], prompts: list[Prompt], seed: int) -> None:
        self.tally = Tally()
        self._servers = servers
        self._prompts = prompts
        self._seed = seed

    def run(self, seconds: float) -> None:
        tally = self.tally
        with self._printing_progress():
            hits, misses = self._hits(), self._misses()
            with Load(self._servers, self._prompts, self._seed, tally) as load:
                self._calm(seconds * CALM_SHARE)
                descriptors = [_descriptors(server) for server in self._servers]
                if tally.clean:
                    load.become_impatient()
                    with Storm(self._servers, self._seed, tally):
                        time.sleep(seconds * (1 - CALM_SHARE))
                        if not until(lambda: set(tally.faults) == set(WEIGHTS), ALL_KINDS_S):
                            tally.found("wrong", f"only {sorted(tally.faults)} happened")
            self._settle(descriptors)
            tally.hits = self._hits() - hits
            tally.misses = self._misses() - misses

    def _calm(self, seconds: float) -> None:
        before = sum(map(_preemptions, self._servers))
        ends = time.monotonic() + seconds

        def enough() -> bool:
            # Before any reset: those preempt too, but not for want of memory.
            self.tally.preemptions = int(sum(map(_preemptions, self._servers)) - before)
            return time.monotonic() > ends and self.tally.preemptions > 0

        if not until(enough, CALM_AT_MOST_S + seconds):
            self.tally.found("wrong", "no request was ever preempted")

    def _settle(self, descriptors: list[int]) -> None:
        """Nothing is held any more, all helpers are there, and pulls work both ways."""
        for server, before in zip(self._servers, descriptors, strict=True):
            self._settle_one(server, before)
        for server, source in (self._servers, self._servers[::-1]):
            self._pull_at_last(server, source)

    def _settle_one(self, server: Server, descriptors: int) -> None:
        name = server.plan.name
        if not until(lambda: set(helpers(server)) == ROLES, SETTLE_S):
            self.tally.found("leaks", f"{name} has the helpers {sorted(helpers(server))}")
        if not until(lambda: not any(_held(server).values()), SETTLE_S):
            self.tally.found("leaks", f"{name} still holds {_held(server)}")
        if not until(lambda: _descriptors(server) <= descriptors + SLACK_FDS, SETTLE_S):
            text = f"{name} has {_descriptors(server)} descriptors, had {descriptors}"
            self.tally.found("leaks", text)
        if not until(lambda: _epoch(server) == server.resets, SETTLE_S):
            text = f"{name} has epoch {_epoch(server)} after {server.resets} resets"
            self.tally.found("wrong", text)

    def _pull_at_last(self, server: Server, source: Server) -> None:
        if not until(lambda: self._pulls(server, source), SETTLE_S):
            self.tally.found("endless", f"{server.plan.name} cannot pull any more")

    def _pulls(self, server: Server, source: Server) -> bool:
        """Whether `server` gets a prompt's blocks from `source`, and the right answer."""
        prompt = max(self._prompts, key=lambda prompt: len(prompt.tokens))
        for engine in (server, source):
            engine.reset_cache(running=False)
        before = _pulled(server)
        for engine, asked in ((source, None), (server, source.plan)):
            answer = engine.complete(prompt.tokens, source=asked, max_tokens=len(prompt.answer))
            if answer.tokens != prompt.answer:
                self.tally.found("wrong", f"{engine.plan.name} at the end: {answer.tokens}")
        return _pulled(server) > before

    def _hits(self) -> int:
        return int(sum(server.metric("mpkv:pull_seconds_count") for server in self._servers))

    def _misses(self) -> Counter[str]:
        counted = [s.metric_by("mpkv:pull_misses_total", "reason") for s in self._servers]
        return sum(counted, Counter())

    @contextmanager
    def _printing_progress(self) -> Iterator[None]:
        stop = threading.Event()

        def work() -> None:
            while not stop.wait(PROGRESS_S):
                print(self.tally.progress(), flush=True)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(PROGRESS_S)


def _held(server: Server) -> dict[str, float]:
    # Gauges move with steps, and an idle engine takes none.
    server.complete([65] * 3, max_tokens=2)
    return {state: server.metric("mpkv:tier_blocks", state=state) for state in HELD}


def _epoch(server: Server) -> float:
    server.complete([65] * 3, max_tokens=2)
    return server.metric("mpkv:content_epoch")


def _pulled(server: Server) -> float:
    return server.metric("mpkv:pulled_blocks_total")


def _preemptions(server: Server) -> float:
    return server.metric("vllm:num_preemptions_total")


def _descriptors(server: Server) -> int:
    """Of the engine: the process that its helpers are children of."""
    (control,) = server.processes("mpkv.control")
    return len(os.listdir(f"/proc/{psutil.Process(control).ppid()}/fd"))
