"""What a benchmark is doing, on stderr, so that stdout holds the result alone."""

import sys
import time

_EVERY_S = 1.0


class Progress:
    def __init__(self, benchmark: str) -> None:
        self._benchmark = benchmark
        self._started = time.monotonic()
        self._said_at = 0.0

    def say(self, text: str) -> None:
        self._said_at = time.monotonic()
        elapsed = self._said_at - self._started
        print(f"[{elapsed:4.0f} s] {self._benchmark}: {text}", file=sys.stderr, flush=True)

    def step(self, done: int, total: int, what: str) -> None:
        """Say it at most once a second."""
        if time.monotonic() - self._said_at >= _EVERY_S:
            self.say(f"{what}, {done} of {total}")
