"""vLLM's own P2P tier as a rival in `mpkv bench lookup`: two processes of its classes."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from mpkv_cli.bench.against import VLLM_P2P, require_vllm
from mpkv_cli.bench.lookup import BLOCK_BYTES, LABEL, Rival
from mpkv_cli.bench.progress import Progress
from mpkv_cli.bench.standin import make_keys
from mpkv_cli.bench.worker import Worker

# Of what it is asked for: answered lookups stay pinned until the source's next step.
TIER_PER_KEY = 2
# An engine of vLLM's with nothing to compute steps on, and sleeps so long in between.
IDLE_STEP_S = 0.001
# vLLM takes long to import.
OPEN_S = 240.0
LOOK_UP_S = 120.0


@contextmanager
def rival_named(against: str, keys: int, progress: Progress) -> Iterator[Rival | None]:
    """The rival of that name, which holds as many of the benchmark's keys, or none."""
    if against != VLLM_P2P:
        yield None
        return
    require_vllm()
    with ExitStack() as stack:
        progress.say("starting vLLM's P2P tier, twice")
        source, destination = (stack.enter_context(Worker("vllm_p2p")) for _ in range(2))
        yield _VllmP2p(source, destination, keys)


class _VllmP2p:
    """A source that is served at the end of each step, as vLLM's scheduler serves it, and
    a destination whose engine is idle."""

    name = "vLLM's P2P tier"

    def __init__(self, source: Worker, destination: Worker, keys: int) -> None:
        self._source = source
        self._destination = destination
        for worker in (source, destination):
            worker.begin("open", blocks=keys * TIER_PER_KEY, block_bytes=BLOCK_BYTES)
        self._address, _ = (worker.finish(OPEN_S) for worker in (source, destination))
        known = make_keys(LABEL, 0, keys)
        self._source.call("store", keys=known.hex())
        self._busy = False
        # The first one greets the source and registers its memory.
        self.look_up(known)

    def set_busy(self, step_s: float, held: float) -> None:
        self._source.call("step", step_s=step_s, held=held)
        self._busy = True

    def set_idle(self) -> None:
        self._source.call("rest")
        self._busy = False

    def look_up(self, keys: bytes) -> float:
        host, port = self._address
        # An idle engine steps too, but must not disturb what is measured in between.
        if not self._busy:
            self._source.call("step", step_s=IDLE_STEP_S, held=0.0)
        seconds = self._destination.call(
            "look_up", limit_s=LOOK_UP_S, host=host, port=port, keys=keys.hex()
        )
        if not self._busy:
            self._source.call("rest")
        return float(seconds)
