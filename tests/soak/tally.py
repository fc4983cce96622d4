"""What a run has counted so far, and how it is printed."""

import threading
import time
from collections import Counter

SHOWN = 20
KILLS = ("kill control", "kill target", "kill initiator")


class Tally:
    """Written by the threads that ask and by the one that breaks things."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.requests = 0
        self.aborts = 0
        self.hits = 0
        self.preemptions = 0
        self.faults: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.endless: list[str] = []
        self.leaks: list[str] = []
        self._lock = threading.Lock()

    @property
    def resets(self) -> int:
        return self.faults["reset"]

    @property
    def kills(self) -> int:
        return sum(self.faults[kind] for kind in KILLS)

    @property
    def clean(self) -> bool:
        return not (self.wrong or self.endless or self.leaks)

    def answered(self) -> None:
        with self._lock:
            self.requests += 1

    def aborted(self) -> None:
        with self._lock:
            self.aborts += 1

    def found(self, kind: str, text: str) -> None:
        """`kind` is the name of one of the lists."""
        with self._lock:
            getattr(self, kind).append(text)
        print(f"{kind.upper()} {text}", flush=True)

    def progress(self) -> str:
        return (
            f"{time.monotonic() - self.started:5.0f} s  {self.requests} requests, "
            f"{self.aborts} aborts, {self.resets} resets, {self.kills} kills, "
            f"{len(self.wrong)} wrong, {len(self.endless)} endless"
        )

    def summary(self) -> list[str]:
        """The last line is for programs."""
        lines = [
            "faults: " + ", ".join(f"{count} {kind}" for kind, count in self.faults.most_common()),
            "misses: "
            + (", ".join(f"{count} {why}" for why, count in self.misses.most_common()) or "none"),
        ]
        for name, found in (
            ("wrong", self.wrong),
            ("endless", self.endless),
            ("leaked", self.leaks),
        ):
            lines += [f"{name}: {text}" for text in found[:SHOWN]]
        lines.append(
            f"requests={self.requests} hits={self.hits} aborts={self.aborts} "
            f"resets={self.resets} preemptions={self.preemptions} kills={self.kills} "
            f"wrong={len(self.wrong)} endless={len(self.endless)} leaked={len(self.leaks)}"
        )
        return lines
