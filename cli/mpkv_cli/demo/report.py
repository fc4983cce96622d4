"""The demo's result: a table for people, a JSON file for programs, and the verdict."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from mpkv_cli.demo.measure import PROMPT_TOKENS, Sample, reusable_tokens


@dataclass(frozen=True)
class Result:
    """The samples with an idle source A, and those with A busy prefilling other prompts."""

    idle: Sequence[Sample]
    busy: Sequence[Sample]

    def outputs_identical(self) -> bool:
        return all(sample.identical for sample in (*self.idle, *self.busy))

    def reused_tokens(self) -> int:
        """In the worst sample."""
        return min(sample.reused_tokens for sample in (*self.idle, *self.busy))

    def failures(self) -> list[str]:
        """Why the demo has not shown what it promises; empty when it has."""
        failures = []
        if self.reused_tokens() < reusable_tokens():
            failures.append(
                f"b reused {self.reused_tokens():,} tokens of a in its worst run, "
                f"expected {reusable_tokens():,}"
            )
        if any(sample.pulled_bytes <= 0 or sample.misses for sample in (*self.idle, *self.busy)):
            failures.append("b counted a pull from a that brought nothing")
        if not self.outputs_identical():
            failures.append("b gave other tokens with a's cache than without it")
        return failures

    def as_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": PROMPT_TOKENS,
            "reused_tokens": self.reused_tokens(),
            "outputs_identical": self.outputs_identical(),
            "lookup_delay_idle_s": _median(self.idle, lambda s: s.lookup_delay_s),
            "lookup_delay_busy_s": _median(self.busy, lambda s: s.lookup_delay_s),
            "ttft_shared_idle_s": _median(self.idle, lambda s: s.ttft_shared_s),
            "ttft_shared_s": _median(self.busy, lambda s: s.ttft_shared_s),
            "ttft_local_s": _median((*self.idle, *self.busy), lambda s: s.ttft_local_s),
            "samples_idle": [asdict(sample) for sample in self.idle],
            "samples_busy": [asdict(sample) for sample in self.busy],
        }

    def table(self) -> str:
        rows = [
            ("", "a idle", "a busy with other prompts"),
            self._row("lookup delay on b", lambda s: s.lookup_delay_s * 1000, " ms"),
            self._row("pull: lookup, read, confirmation", lambda s: s.pull_s * 1000, " ms"),
            self._row("moved from a to b", lambda s: s.pulled_bytes / (1 << 20), " MiB"),
            self._row(f"tokens reused of {PROMPT_TOKENS:,}", lambda s: s.reused_tokens, ""),
            self._row("first token on b, with mpkv", lambda s: s.ttft_shared_s * 1000, " ms"),
            self._row("first token on b, without", lambda s: s.ttft_local_s * 1000, " ms"),
            self._row("one scheduler step of a", lambda s: s.step_s * 1000, " ms"),
        ]
        lines = [f"{name:<34}{idle:>26}{busy:>28}" for name, idle, busy in rows]
        same = "yes" if self.outputs_identical() else "NO"
        return "\n".join([*lines, f"outputs identical: {same}"])

    def _row(self, name: str, value: Callable[[Sample], float], unit: str) -> tuple[str, str, str]:
        idle, busy = ([value(s) for s in samples] for samples in (self.idle, self.busy))
        return name, _cell(idle, unit), _cell(busy, unit)


def describe(sample: Sample) -> str:
    with_mpkv, without = sample.ttft_shared_s * 1000, sample.ttft_local_s * 1000
    return f"first token on b: {_number(with_mpkv)} ms with a's blocks, {_number(without)} without"


def _cell(values: list[float], unit: str) -> str:
    """The median, and the range where it says more."""
    low, middle, high = (_number(value) for value in (min(values), median(values), max(values)))
    if high == "0":
        return "-"
    return f"{middle}{unit}" if low == high else f"{middle}{unit} [{low} - {high}]"


def _number(value: float) -> str:
    return f"{value:,.1f}" if 0 < value < 10 else f"{value:,.0f}"


def _median(samples: Sequence[Sample], value: Callable[[Sample], float]) -> float:
    return median(value(sample) for sample in samples)
