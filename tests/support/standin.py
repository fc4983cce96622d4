"""A stand-in for the engine process: real ledger, real helpers, no vLLM.

It does on the caller's thread what the scheduler thread does, block contents included,
so tests can compare every byte.
"""

import itertools
import mmap
import os
import socket
import time
from collections import Counter
from types import TracebackType

import msgspec

from mpkv.cluster.settings import EngineSettings, Integrity, PeerAddress
from mpkv.engine.helper_process import HelperProcess
from mpkv.engine.pull_book import PullBook
from mpkv.engine.supervisor import BOUNDS, Supervisor
from mpkv.memory import FILLING, Ledger, block_ids, create_segment
from mpkv.messages import Bounds, Compatibility, KeyGroup, MissReason, Tier
from mpkv.trace import open_trace

KEY_SIZE = 36
CONTENT = b"weights of tests"

COMPATIBILITY = Compatibility(
    model="stand-in",
    content="",
    revision="",
    dtype="bfloat16",
    cache_dtype="bfloat16",
    kv_layout="LBHNC",
    tokens_per_block=(16,),
    blocks_per_chunk=1,
    block_bytes=4096,
    tensor_parallel=1,
    pipeline_parallel=1,
    prefill_context_parallel=1,
    decode_context_parallel=1,
    hash_algorithm="sha256_cbor",
    hash_seed="0",
    key_size=KEY_SIZE,
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def make_keys(prefix: str, count: int) -> list[bytes]:
    """Keys as vLLM makes them: 32 bytes of hash, 4 of group index."""
    return [f"{prefix}-{i}".encode().ljust(32, b".") + bytes(4) for i in range(count)]


class RecordingMeter:
    """Counts what a PullBook reports."""

    def __init__(self) -> None:
        self.misses: Counter[MissReason] = Counter()
        self.missed_blocks: Counter[MissReason] = Counter()
        self.details: list[str] = []
        self.blocks = 0
        self.lookups = 0

    def lookup_ended(self, seconds: float) -> None:
        self.lookups += 1

    def pulled(self, peer: str, blocks: int, granted_s: float, confirmed_s: float) -> None:
        assert 0 <= granted_s <= confirmed_s
        self.blocks += blocks

    def missed(self, peer: str, reason: MissReason, detail: str) -> None:
        self.misses[reason] += 1
        self.details.append(detail)

    def not_given(self, peer: str, reason: MissReason, blocks: int, detail: str) -> None:
        assert blocks > 0
        self.missed_blocks[reason] += blocks


class StandIn:
    """One engine without vLLM. Use as a context manager."""

    def __init__(
        self,
        node: str,
        *,
        blocks: int = 256,
        block_bytes: int = 4096,
        host: str = "127.0.0.1",
        port: int | None = None,
        peers: tuple[PeerAddress, ...] = (),
        deadline_s: float = 10.0,
        head_start: float = 0.0,
        compatibility: Compatibility = COMPATIBILITY,
        trace_dir: str = "",
        integrity: Integrity = Integrity.OFF,
        bounds: Bounds = BOUNDS,
    ) -> None:
        self.port = port if port is not None else free_port()
        self.address = f"{host}:{self.port}"
        self.block_bytes = block_bytes
        self.settings = EngineSettings(
            node=node,
            listen=host,
            port=self.port,
            advertise=host,
            peers=peers,
            deadline_s=deadline_s,
            trace_dir=trace_dir,
            integrity=integrity,
        )
        self.ledger = Ledger.create(blocks, KEY_SIZE)
        self.ledger.set_content(CONTENT)
        self._fd = create_segment("standin-tier", blocks * block_bytes)
        self.tier = mmap.mmap(self._fd, blocks * block_bytes)
        self.meter = RecordingMeter()
        self.supervisor = Supervisor(
            self.settings,
            msgspec.structs.replace(compatibility, block_bytes=block_bytes),
            0,
            Tier(self._fd, blocks, block_bytes),
            self.ledger,
            bounds,
        )
        self.pulls = PullBook(
            self.ledger,
            self.supervisor,
            self.meter,
            deadline_s,
            open_trace(trace_dir, f"{node}-engine"),
            lambda stored, evicted: None,
            head_start,
        )

    def __enter__(self) -> "StandIn":
        self.supervisor.start()
        self.wait_ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.supervisor.shutdown()
        os.close(self._fd)

    # --- content ---------------------------------------------------------------------

    def content(self, key: bytes) -> bytes:
        """The bytes that a block of `key` must hold: they name it, all through."""
        return (key * (self.block_bytes // len(key) + 1))[: self.block_bytes]

    def store(self, keys: list[bytes]) -> None:
        """Compute and publish blocks as the engine's workers would."""
        allocated = self.ledger.allocate(len(keys), FILLING)
        assert allocated is not None
        slots, _ = allocated
        for block, key in zip(memoryview(block_ids(slots)).cast("I"), keys, strict=True):
            self.tier[block * self.block_bytes : (block + 1) * self.block_bytes] = self.content(key)
        assert not any(self.ledger.publish(slots, b"".join(keys), False))

    def holds(self, key: bytes) -> bool:
        """Whether `key` is a hit; fails the test if its bytes are wrong."""
        block = self.ledger.find(key)
        if block < 0:
            return False
        found = self.tier[block * self.block_bytes : (block + 1) * self.block_bytes]
        assert found == self.content(key), f"wrong bytes under {key!r}"
        return True

    # --- pulling ---------------------------------------------------------------------

    def start_pull(self, request: str, peer: str, keys: list[bytes]) -> None:
        self.pulls.start(request, peer, (KeyGroup(b"".join(keys), 16, 0),))

    def step(self) -> None:
        """One turn of the scheduler, with what the manager does in each."""
        self.ledger.reclaim()
        self.pulls.drain()
        self.pulls.start_waiting()

    def wait(self, request: str, limit_s: float = 30.0) -> None:
        """Step until the request no longer waits."""
        until = time.monotonic() + limit_s
        while True:
            self.step()
            if not self.pulls.pending(request):
                return
            assert time.monotonic() < until, f"request {request} still waits"
            time.sleep(0.001)

    def wait_idle(self, limit_s: float = 30.0) -> None:
        """Step until no pull holds anything any more."""
        until = time.monotonic() + limit_s
        while not self.pulls.idle():
            assert time.monotonic() < until, "a pull never ended"
            self.step()
            time.sleep(0.001)

    def pull(self, request: str, peer: str, keys: list[bytes]) -> list[bool]:
        """Pull, look the keys up, end the request; say which were hits."""
        self.start_pull(request, peer, keys)
        self.wait(request)
        hits = [self.holds(key) for key in keys]
        self.pulls.looked_up(request)
        self.pulls.finished(request)
        return hits

    def clean(self) -> bool:
        """Whether nothing is pinned or in flight."""
        counts = self.ledger.counts()
        return not any(
            counts[name]
            for name in ("landing", "filling", "draining", "control_pins", "engine_pins")
        )

    def pull_until(self, source: "StandIn", keys: list[bytes], limit_s: float = 20.0) -> None:
        """Pull again and again until all came: peers need a moment to meet again."""
        until = time.monotonic() + limit_s
        for number in itertools.count():
            if all(self.pull(f"again {number}", source.address, keys)):
                return
            assert time.monotonic() < until, f"no pull works: {self.meter.details[-3:]}"
            time.sleep(0.05)

    def wait_clean(self, limit_s: float = 10.0) -> None:
        until = time.monotonic() + limit_s
        while not self.clean():
            assert time.monotonic() < until, self.ledger.counts()
            time.sleep(0.01)

    # --- helpers ---------------------------------------------------------------------

    def wait_ready(self, limit_s: float = 30.0) -> None:
        """Until the helpers can serve and pull, which takes them half a second."""
        until = time.monotonic() + limit_s
        counters = self.ledger.counters("control")
        while not {"targets_ready", "initiators_ready"} <= {
            name for name, count in counters.read().items() if count
        }:
            assert time.monotonic() < until, "the helpers did not become ready"
            time.sleep(0.005)

    def wait_count(self, role: str, name: str, count: int, limit_s: float = 20.0) -> None:
        """Until a helper has counted so many."""
        until = time.monotonic() + limit_s
        counters = self.ledger.counters(role)
        while counters.value(name) < count:
            assert time.monotonic() < until, f"{counters.value(name)} {name}, expected {count}"
            time.sleep(0.002)

    def wait_replaced(self, name: str, old: HelperProcess, limit_s: float = 20.0) -> None:
        """Until another process runs in place of `old`."""
        until = time.monotonic() + limit_s
        while self.helper(name).pid == old.pid:
            assert time.monotonic() < until, f"the {name} is still the same"
            time.sleep(0.005)

    def helper(self, name: str, limit_s: float = 20.0) -> HelperProcess:
        """The running `control`, `target` or `initiator`, once it has been started."""
        until = time.monotonic() + limit_s
        while True:
            generation = self.supervisor.generation
            found = getattr(generation, name) if generation is not None else None
            if found is not None and found.alive():
                assert isinstance(found, HelperProcess)
                return found
            assert time.monotonic() < until, f"no {name} is running"
            time.sleep(0.005)
