"""What a run has counted so far, and how it is printed."""

import time
from collections import Counter

from tests.chaos.orders import Counts, Endless, Wrong

SHOWN = 20


class Tally:
    def __init__(self) -> None:
        self.started = time.monotonic()
        self.faults: Counter[str] = Counter()
        self.counts = Counts()
        self.wrong: list[str] = []
        self.endless: list[str] = []
        self.leaks: list[str] = []
        # Engines that do not find back to each other once all is well again.
        self.apart: list[str] = []

    @property
    def hits(self) -> int:
        return self.counts.full + self.counts.partial

    @property
    def clean(self) -> bool:
        return not (self.wrong or self.endless or self.leaks or self.apart)

    def replace(self, before: Counts, now: Counts) -> None:
        """An engine whose counts were `before` has sent `now`."""
        for field in ("pulls", "full", "partial", "compared"):
            change = getattr(now, field) - getattr(before, field)
            setattr(self.counts, field, getattr(self.counts, field) + change)
        misses = Counter(self.counts.misses)
        misses.update(now.misses)
        misses.subtract(before.misses)
        self.counts.misses = dict(misses)

    def found(self, engine: str, report: Wrong | Endless) -> None:
        found = self.wrong if isinstance(report, Wrong) else self.endless
        found.append(f"{engine}: {report.text}")
        print(f"{type(report).__name__.upper()} {found[-1]}", flush=True)

    def progress(self) -> str:
        return (
            f"{time.monotonic() - self.started:5.0f} s  {self.faults.total()} faults, "
            f"{self.counts.pulls} pulls, {self.hits} hits, {self.counts.compared} blocks "
            f"compared, {len(self.wrong)} wrong, {len(self.endless)} endless"
        )

    def summary(self) -> list[str]:
        """The last line is for programs."""
        counts = self.counts
        misses = Counter(counts.misses).most_common()
        lines = [
            "faults: " + ", ".join(f"{count} {kind}" for kind, count in self.faults.most_common()),
            f"pulls: {counts.pulls}, of which {counts.full} full and {counts.partial} partial "
            f"hits; {counts.compared} blocks compared",
            "misses: " + (", ".join(f"{count} {why}" for why, count in misses) or "none"),
        ]
        for name, found in (
            ("wrong", self.wrong),
            ("endless", self.endless),
            ("leaked", self.leaks),
            ("apart", self.apart),
        ):
            lines += [f"{name}: {text}" for text in found[:SHOWN]]
        lines.append(
            f"faults={self.faults.total()} pulls={counts.pulls} hits={self.hits} "
            f"wrong={len(self.wrong)} endless={len(self.endless) + len(self.apart)} "
            f"leaked={len(self.leaks)}"
        )
        return lines
