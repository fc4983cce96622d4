"""A stand-in engine whose scheduler-shaped loop is timed on the worker's main thread."""

import contextlib
import time

from mpkv.messages import KeyGroup
from mpkv_cli.bench.standin import KEY_SIZE, LOOK_S, TOKENS_PER_KEY, make_keys
from mpkv_cli.bench.steps import work
from mpkv_cli.bench.worker import serve
from mpkv_cli.bench.workers.engine import EngineWorker, methods

PULL_S = 30.0
CALIBRATION_ITEMS = 1000


class SchedulerWorker(EngineWorker):
    """Methods are called by name; see `mpkv_cli.bench.worker`."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[str] = []

    def calibrate(self, work_s: float) -> int:
        """How many items of `work` take that long, undisturbed."""
        fastest = min(_seconds_of_work(CALIBRATION_ITEMS) for _ in range(20))
        return max(int(CALIBRATION_ITEMS * work_s / fastest), 1)

    def wait_on(self, peer: str, pulls: int, keys: int) -> None:
        """Start pulls from a peer that does not answer; `steps` then asks for them."""
        for number in range(pulls):
            request = self._request()
            self.engine.start_pull(request, peer, make_keys("waiting", number * keys, keys))
            self._waiting.append(request)

    def give_up(self) -> None:
        """End the requests that wait, and return when their slots are back."""
        for request in self._waiting:
            self.engine.pulls.finished(request)
        self._waiting.clear()
        until = time.monotonic() + PULL_S
        while not self.engine.pulls.idle():
            if time.monotonic() > until:
                raise TimeoutError("cancelled pulls have not ended")
            self.engine.step()
            time.sleep(LOOK_S)

    def steps(
        self, count: int, items: int, wait_s: float, with_mpkv: bool
    ) -> list[tuple[float, float]]:
        """Seconds of each step, and of mpkv's calls in it; waits for the model are not counted."""
        found = []
        for _ in range(count):
            started = time.perf_counter()
            work(items)
            worked = time.perf_counter()
            if with_mpkv:
                self._call_mpkv()
            ended = time.perf_counter()
            found.append((ended - started, ended - worked))
            time.sleep(wait_s)
        return found

    def idle_step_s(self, steps: int, repeats: int) -> list[float]:
        """Seconds of mpkv's calls in a step in which no pull is open."""
        found = []
        for _ in range(repeats):
            started = time.perf_counter()
            for _ in range(steps):
                self._call_mpkv()
            found.append((time.perf_counter() - started) / steps)
        return found

    def pull_costs(self, peer: str, label: str, count: int, repeats: int) -> list[dict[str, float]]:
        """Seconds of the scheduler thread for each pull, from keys to the end of its request."""
        joined = make_keys(label, 0, count)
        keys = [joined[at : at + KEY_SIZE] for at in range(0, len(joined), KEY_SIZE)]
        return [self._pull_cost(peer, keys) for _ in range(repeats)]

    def _call_mpkv(self) -> None:
        """What the connector calls in one step, per waiting request and at the end."""
        pulls = self.engine.pulls
        for request in self._waiting:
            pulls.drain()
            pulls.pending(request)
        pulls.drain()
        pulls.start_waiting()

    def _pull_cost(self, peer: str, keys: list[bytes]) -> dict[str, float]:
        engine, pulls = self.engine, self.engine.pulls
        engine.ledger.drop_ready()
        request = self._request()
        before = time.perf_counter()
        # As the connector does for a request: which keys, less what is here already.
        packed = b"".join(keys)
        here = engine.ledger.lookup_prefix(packed)
        groups = (KeyGroup(packed[here * KEY_SIZE :], TOKENS_PER_KEY, 0),)
        keyed = time.perf_counter()
        pulls.start(request, peer, groups)
        started = time.perf_counter()
        until = time.monotonic() + PULL_S
        while True:
            if time.monotonic() > until:
                raise TimeoutError("a pull has not ended")
            time.sleep(LOOK_S)
            taking = time.perf_counter()
            pulls.drain()
            if not pulls.pending(request):
                break
        taken = time.perf_counter()
        engine.end(request)
        ended = time.perf_counter()
        return {
            "keys_s": keyed - before,
            "start_s": started - keyed,
            "adopt_s": taken - taking,
            "end_s": ended - taken,
        }


def _seconds_of_work(items: int) -> float:
    started = time.perf_counter()
    work(items)
    return time.perf_counter() - started


if __name__ == "__main__":
    with contextlib.closing(SchedulerWorker()) as scheduler_worker:
        serve(methods(scheduler_worker))
