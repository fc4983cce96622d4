"""A stand-in engine. The worker's main thread answers; a busy scheduler thread runs beside."""

import contextlib
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpkv.cluster.settings import Integrity
from mpkv_cli.bench.standin import StandIn, make_keys
from mpkv_cli.bench.steps import StepLoop, compute_until
from mpkv_cli.bench.worker import serve


class EngineWorker:
    """Methods are called by name; see `mpkv_cli.bench.worker`."""

    def __init__(self) -> None:
        self._engine: StandIn | None = None
        self._steps: StepLoop | None = None
        self._trace: tempfile.TemporaryDirectory[str] | None = None
        self._requests = 0

    @property
    def engine(self) -> StandIn:
        assert self._engine is not None, "open comes first"
        return self._engine

    def close(self) -> None:
        self.idle()
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        if self._trace is not None:
            self._trace.cleanup()
            self._trace = None

    # --- called from the benchmark -----------------------------------------------------

    def open(
        self,
        node: str,
        blocks: int,
        block_bytes: int,
        peers: Sequence[str] = (),
        trace: bool = False,
        integrity: str = Integrity.OFF,
        lanes: int = 2,
    ) -> str:
        """Start an engine in place of any earlier one; its address, once its helpers serve."""
        self.close()
        self._trace = tempfile.TemporaryDirectory(prefix="mpkv-bench-") if trace else None
        trace_dir = self._trace.name if self._trace is not None else ""
        self._engine = StandIn(
            node,
            blocks,
            block_bytes,
            peers,
            trace_dir=trace_dir,
            integrity=Integrity(integrity),
            lanes=lanes,
        )
        return self._engine.address

    def store(self, label: str, count: int, first: int = 0, write: bool = False) -> None:
        self.engine.store(make_keys(label, first, count), write=write)

    def busy(self, step_s: float, held: float) -> None:
        self.idle()
        self._steps = StepLoop(step_s, held)

    def idle(self) -> None:
        if self._steps is not None:
            self._steps.stop()
            self._steps = None

    def pids(self) -> dict[str, int]:
        return {name: helper.pid for name, helper in self.engine.helpers().items()}

    def wait_count(self, name: str, at_least: int) -> None:
        """Until the control plane has counted so many."""
        self.engine.wait_count("control", name, at_least)

    def wait_connected(self, count: int) -> None:
        """Until so many peers have answered the greeting, registered or not."""
        self.engine.wait_count("control", "peers_connected", count)

    def wait_peers(self, count: int) -> None:
        """Until so many peers have been registered and warmed."""
        self.engine.wait_count("initiator", "peers_added", count)

    def added_s(self) -> list[float]:
        """How long the initiator took for each peer so far; only with `trace`."""
        assert self._trace is not None
        seconds = []
        for path in sorted(Path(self._trace.name).glob("initiator-*.jsonl")):
            events = map(json.loads, path.read_text().splitlines())
            seconds += [each["seconds"] for each in events if each["event"] == "peer_added"]
        return seconds

    def spin(self, seconds: float) -> float:
        """Rounds of pure Python per second, from a thread that does nothing else."""
        return compute_until(time.monotonic() + seconds) / seconds

    def spin_and_pull(self, seconds: float, peer: str, label: str, count: int) -> dict[str, float]:
        """The same after starting a pull, which goes on meanwhile; and the times of the pull."""
        request = self._request()
        self.engine.start_pull(request, peer, make_keys(label, 0, count))
        rate = self.spin(seconds)
        self.engine.wait([request])
        return {"rate": rate, **asdict(self.engine.end(request))}

    def pull(
        self,
        peer: str,
        label: str,
        count: int,
        repeats: int = 1,
        check: bool = False,
        pause_s: float = 0.0,
    ) -> list[dict[str, float]]:
        """Pull the same keys again and again, each time into an emptied tier."""
        keys = make_keys(label, 0, count)
        found = []
        for _ in range(repeats):
            time.sleep(pause_s)
            found.append(self._pull(peer, keys, check))
        return found

    def pull_many(self, peer: str, label: str, count: int, pulls: int) -> float:
        """Seconds until `pulls` pulls of `count` keys each, started at once, are confirmed."""
        engine = self.engine
        engine.ledger.drop_ready()
        keys = [make_keys(label, number * count, count) for number in range(pulls)]
        requests = [self._request() for _ in keys]
        for request, wanted in zip(requests, keys, strict=True):
            engine.start_pull(request, peer, wanted)
        engine.wait(requests)
        times = [engine.end(request) for request in requests]
        started_at = min(each.started_at for each in times)
        return max(each.started_at + each.confirmed_s for each in times) - started_at

    def pull_beside(
        self, first: tuple[str, str, int], second: tuple[str, str, int]
    ) -> list[dict[str, float]]:
        """Two pulls (peer, label, count) at once."""
        engine = self.engine
        engine.ledger.drop_ready()
        requests = []
        for peer, label, count in (first, second):
            requests.append(self._request())
            engine.start_pull(requests[-1], peer, make_keys(label, 0, count))
        engine.wait(requests)
        return [asdict(engine.end(request)) for request in requests]

    # --- parts -------------------------------------------------------------------------

    def _pull(self, peer: str, keys: bytes, check: bool) -> dict[str, float]:
        self.engine.ledger.drop_ready()
        times = self.engine.pull(self._request(), peer, keys)
        if check:
            self.engine.check(keys)
        return asdict(times)

    def _request(self) -> str:
        self._requests += 1
        return f"request {self._requests}"


def methods(worker: EngineWorker) -> dict[str, Any]:
    """What may be called by name: all that is public but `engine` and `close`."""
    names = [name for name in dir(worker) if not name.startswith("_")]
    return {name: getattr(worker, name) for name in names if name not in ("engine", "close")}


if __name__ == "__main__":
    with contextlib.closing(EngineWorker()) as engine_worker:
        serve(methods(engine_worker))
