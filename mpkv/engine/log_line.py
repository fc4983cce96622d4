"""What vLLM's periodic log line says of mpkv: what was counted since the last one, in short.

vLLM collects in its API server what the scheduler's `Meter` has handed out, prints it every
ten seconds as "KV Transfer metrics: key=value, ..." and begins anew. `/metrics` has it all.
"""

from collections.abc import Iterator
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)

from mpkv.engine.metrics import GRANT, HELPER_EVENTS

# About as long as the line on throughput that vLLM writes beside it.
LONGEST = 160
# By how many peers, or reasons, a number is told apart.
_MOST_PARTS = 2
_LONGEST_LABEL = 32
# Of vLLM's own, as bytes moved between its cache and the tier.
_OF_VLLM = {"vllm:kv_offload_store_bytes": "stored", "vllm:kv_offload_load_bytes": "loaded"}
# Beats and other signs of life are no news, and a grant is a part of its pull.
_QUIET = {HELPER_EVENTS, GRANT}


class LoggedStats(OffloadingConnectorStats):
    """As vLLM's, but for the log alone: gauges, and what was not counted, are not there."""

    def is_empty(self) -> bool:
        return next(self._items(), None) is None

    def reduce(self) -> dict[str, Any]:
        """Counters first, each with its largest parts, then means of histograms."""
        line: dict[str, Any] = {}
        room = LONGEST
        items = list(self._items())
        for number, (key, text) in enumerate(items):
            room -= len(f"{key}={text}, ")
            if room < len("more=99"):
                line["more"] = len(items) - number
                break
            line[key] = text
        return line

    def _items(self) -> Iterator[tuple[str, str]]:
        data = self.data["data"]
        for kind in ("counter", "histogram"):
            for name, values in data.items():
                ours = name.startswith("mpkv:") and name not in _QUIET
                if ours and self.data["types"].get(name) == kind:
                    yield from _item(name, kind, values)
        for name, short in _OF_VLLM.items():
            if total := sum(data.get(name, {}).values()):
                yield f"{short}_MiB", _number(total / (1 << 20))


def _item(name: str, kind: str, values: dict[tuple[str, ...], Any]) -> Iterator[tuple[str, str]]:
    short = name.removeprefix("mpkv:")
    if kind == "histogram":
        samples = [sample for listed in values.values() for sample in listed]
        if samples:
            mean_ms = _number(1000 * sum(samples) / len(samples))
            of = f" (mean of {len(samples)})" if len(samples) > 1 else ""
            yield f"{short.removesuffix('_seconds')}_ms", f"{mean_ms}{of}"
        return
    total = sum(values.values())
    if not total:
        return
    if short.endswith("_bytes"):
        yield f"{short.removesuffix('_bytes')}_MiB", _number(total / (1 << 20))
    else:
        yield short, f"{_number(total)}{_parts(values)}"


def _parts(values: dict[tuple[str, ...], float]) -> str:
    """How a number divides by its last label: the peer, or the reason."""
    parts: dict[str, float] = {}
    for labels, value in values.items():
        if labels:
            parts[labels[-1]] = parts.get(labels[-1], 0) + value
    largest = sorted(parts.items(), key=lambda part: -part[1])
    told = [
        f"{label[-_LONGEST_LABEL:]} {_number(value)}"
        for label, value in largest[:_MOST_PARTS]
        if value
    ]
    if len(largest) > _MOST_PARTS:
        told.append(f"{len(largest) - _MOST_PARTS} more")
    return f" ({', '.join(told)})" if told else ""


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) or value >= 100 else f"{value:.1f}"
