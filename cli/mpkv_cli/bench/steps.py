"""What keeps a stand-in's scheduler thread busy: steps of pure Python, and waits for a model.

The Python part holds the GIL as a long schedule() does: another thread of the process gets
it only by asking and waiting a switch interval each time.
"""

import threading
import time
from collections.abc import Callable

# Long enough that looking at the clock costs nothing beside it, short enough for exact steps.
_WORK_ITEMS = 200


class StepLoop:
    """A scheduler thread. `on_step` is called once a step, as vLLM calls a connector.

    Of each step's `step_s` seconds the thread computes for the share `held`, and waits for
    a model that is not there for the rest.
    """

    def __init__(
        self, step_s: float, held: float, on_step: Callable[[], object] = lambda: None
    ) -> None:
        self._step_s = step_s
        self._held_s = step_s * held
        self._on_step = on_step
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10 * self._step_s + 10)

    def _run(self) -> None:
        while not self._stop.is_set():
            started = time.monotonic()
            self._on_step()
            compute_until(started + self._held_s)
            self._stop.wait(max(started + self._step_s - time.monotonic(), 0))


def compute_until(moment: float) -> int:
    """Pure Python until `moment` of `time.monotonic()`; how often it went round."""
    rounds = 0
    while time.monotonic() < moment:
        work(_WORK_ITEMS)
        rounds += 1
    return rounds


def work(items: int) -> int:
    """What a scheduler does all day: look things up, build small lists, add up."""
    running = {f"request {number}": number for number in range(items)}
    budget = 0
    for name, tokens in running.items():
        if tokens % 3:
            budget += len(name) + tokens
    return budget + len([name for name in running if name.endswith("7")])
