"""What happens to the engines meanwhile: an endless seeded series of faults."""

import contextlib
import math
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import psutil

from tests.e2e.servers import Server
from tests.soak.prompts import BLOCK
from tests.soak.tally import Tally

WEIGHTS = {
    "kill control": 3,
    "kill target": 2,
    "kill initiator": 4,
    "stop control": 5,
    "stop target": 3,
    "stop initiator": 4,
    "abort a waiting pull": 4,
    "reset": 6,
}
PAUSE_S = 1.0
SHORTEST_S, LONGEST_S = 0.02, 1.0
# Some last longer than a pull's deadline and every patience with it.
OVERLONG_SHARE = 0.1
OVERLONG_S = (4.5, 8.0)
RESET_SPREAD_S = 0.3
WAITING_S = 0.4


class Storm:
    """Breaks things in turn until left; what was stopped goes on by then."""

    def __init__(self, servers: Sequence[Server], seed: int, tally: Tally) -> None:
        self._servers = servers
        self._choices = random.Random(f"faults {seed}")
        self._tally = tally
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Storm":
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join(timeout=180)
        if self._thread.is_alive():
            self._tally.found("endless", "a fault never came to its end")

    def _run(self) -> None:
        choices = self._choices
        kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
        # Each kind once, so that also a short storm has all of them.
        missing = choices.sample(kinds, len(kinds))
        while not self._stop.wait(min(choices.expovariate(1 / PAUSE_S), 4 * PAUSE_S)):
            kind = missing[0] if missing else choices.choices(kinds, weights)[0]
            try:
                if self._strike(kind):
                    self._tally.faults[kind] += 1
                    missing = [kind for kind in missing if not self._tally.faults[kind]]
            except (OSError, AssertionError) as error:
                self._tally.found("wrong", f"{kind}: {error!r}")

    def _strike(self, kind: str) -> bool:
        """False if the fault finds nothing to strike."""
        server, other = self._choices.sample(list(self._servers), 2)
        for_s, running = _duration(self._choices), self._choices.random() < 0.5
        verb, _, role = kind.partition(" ")
        if kind == "reset":
            self._reset(running)
            return True
        if kind == "abort a waiting pull":
            return self._abort_waiting(server, other)
        helper = helpers(server).get(role)
        if helper is None:
            return False
        if verb == "kill":
            return _signal(helper, signal.SIGKILL)
        with _stopped(helper) as stopped:
            self._stop.wait(for_s)
        return stopped

    def _reset(self, running: bool) -> None:
        """All engines get new weights, one after the other."""
        for server in self._choices.sample(list(self._servers), len(self._servers)):
            before = server.resets
            server.reset_cache(running=running)
            if server.resets == before:
                # vLLM preempts for a reset only what does not load from a connector just now.
                server.reset_cache(running=False)
            self._stop.wait(self._choices.uniform(0, RESET_SPREAD_S))

    def _abort_waiting(self, server: Server, source: Server) -> bool:
        """Hang up while the source's control plane sits on the request's pull."""
        control = helpers(source).get("control")
        if control is None:
            return False
        unknown = self._choices.choices(range(32, 127), k=4 * BLOCK + 1)
        with _stopped(control) as stopped, contextlib.suppress(TimeoutError):
            server.stream(unknown, source.plan, 1, timeout_s=WAITING_S)
        return stopped


def helpers(server: Server) -> dict[str, psutil.Process]:
    """The living helpers by role, as `ps` shows them; one that has just begun has no name yet."""
    found: dict[str, psutil.Process] = {}
    for pid in server.processes("mpkv."):
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            kind, _, role = process.name().partition("-")
            if kind == "mpkv":
                found[role] = process
    return found


@contextlib.contextmanager
def _stopped(process: psutil.Process) -> Iterator[bool]:
    stopped = _signal(process, signal.SIGSTOP)
    try:
        yield stopped
    finally:
        _signal(process, signal.SIGCONT)


def _signal(process: psutil.Process, number: signal.Signals) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
        return True
    return False


def _duration(choices: random.Random) -> float:
    if choices.random() < OVERLONG_SHARE:
        return choices.uniform(*OVERLONG_S)
    return math.exp(choices.uniform(math.log(SHORTEST_S), math.log(LONGEST_S)))


def until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Whether `condition` came true in time."""
    ends = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > ends:
            return False
        time.sleep(0.1)
    return True
