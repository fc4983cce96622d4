"""Looks keys up at a given rate, whether or not earlier answers have come."""

import os
import threading
import time

from mpkv_cli.bench.probe import Probe
from mpkv_cli.bench.standin import make_keys
from mpkv_cli.bench.worker import serve

# Lookups in flight: what a source may pin for one peer must be enough for them.
MOST_OPEN = 24
# How far behind its rate it may be and still catch up.
MOST_LATE_S = 0.02
# In reality those who ask are other machines. Here they must not take the processor from the
# engine whose steps are timed.
NICENESS = 19


class Asker:
    """Methods are called by name; see `mpkv_cli.bench.worker`."""

    def start(
        self, address: str, block_bytes: int, label: str, count: int, per_second: float
    ) -> None:
        self._probe = Probe(address, block_bytes, "asker")
        self._keys = make_keys(label, 0, count)
        self._period_s = 1 / per_second
        self._answers = 0
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """Lookups answered per second since `start`."""
        elapsed = time.monotonic() - self._started
        answers = self._answers
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return answers / elapsed

    def _run(self) -> None:
        try:
            with self._probe as probe:
                self._ask(probe)
        except Exception as error:
            self._failure = error

    def _ask(self, probe: Probe) -> None:
        sent = 0
        due = time.monotonic()
        while not self._stop.is_set():
            wait_s = due - time.monotonic()
            if wait_s <= 0 and sent - self._answers < MOST_OPEN:
                probe.post(self._keys)
                sent += 1
                due = max(due + self._period_s, time.monotonic() - MOST_LATE_S)
            else:
                self._answers += probe.collect(min(max(wait_s, 0.001), 0.1))


if __name__ == "__main__":
    os.nice(NICENESS)
    asker = Asker()
    serve({"start": asker.start, "stop": asker.stop})
