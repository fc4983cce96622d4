"""An engine without vLLM: its ledger, its tier, its helpers and its pulls.

The caller's thread does what vLLM's scheduler thread does.
"""

import hashlib
import mmap
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpkv.cluster.settings import EngineSettings, Integrity, PeerAddress
from mpkv.engine.helper_process import HelperProcess
from mpkv.engine.pull_book import PullBook
from mpkv.engine.supervisor import Supervisor
from mpkv.errors import HelperFailed
from mpkv.memory import FILLING, Ledger, block_ids, create_segment
from mpkv.messages import Compatibility, KeyGroup, MissReason, Tier

KEY_SIZE = 36
CONTENT = b"weights of bench"
TOKENS_PER_KEY = 16
READY_S = 30.0
# How often the stand-in's thread looks whether a pull has ended. Times of pulls come from
# the control plane's clock, so this costs them nothing.
LOOK_S = 0.0005


def compatibility(block_bytes: int) -> Compatibility:
    return Compatibility(
        model="stand-in",
        content="",
        revision="",
        dtype="bfloat16",
        cache_dtype="bfloat16",
        kv_layout="LBHNC",
        tokens_per_block=(TOKENS_PER_KEY,),
        blocks_per_chunk=1,
        block_bytes=block_bytes,
        tensor_parallel=1,
        pipeline_parallel=1,
        prefill_context_parallel=1,
        decode_context_parallel=1,
        hash_algorithm="sha256_cbor",
        hash_seed="0",
        key_size=KEY_SIZE,
    )


def make_keys(label: str, first: int, count: int) -> bytes:
    """Keys as vLLM makes them, packed: 32 bytes of hash, 4 of group index."""
    return b"".join(
        hashlib.sha256(f"{label} {number}".encode()).digest() + bytes(4)
        for number in range(first, first + count)
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True)
class PullTimes:
    """Seconds from a pull's start: until its grant, its last byte, its confirmation."""

    granted_s: float
    read_s: float
    confirmed_s: float
    # Of `time.monotonic()`, as all processes of the machine have it.
    started_at: float


@dataclass
class _Meter:
    """What becomes of pulls, as `PullBook` tells it."""

    misses: list[str] = field(default_factory=list)

    def lookup_ended(self, seconds: float) -> None:
        pass

    def pulled(self, peer: str, blocks: int, granted_s: float, confirmed_s: float) -> None:
        pass

    def missed(self, peer: str, reason: MissReason, detail: str) -> None:
        self.misses.append(f"{reason.value}: {detail}")

    def not_given(self, peer: str, reason: MissReason, blocks: int, detail: str) -> None:
        pass


class StandIn:
    """One engine with real helpers, which are ready when it has been made."""

    def __init__(
        self,
        node: str,
        blocks: int,
        block_bytes: int,
        peers: Iterable[str] = (),
        deadline_s: float = 59.0,
        trace_dir: str = "",
        integrity: Integrity = Integrity.OFF,
        lanes: int = 2,
    ) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.ledger = Ledger.create(blocks, KEY_SIZE)
        self.ledger.set_content(CONTENT)
        self._fd = create_segment("mpkv-bench-tier", blocks * block_bytes)
        self._mapping = mmap.mmap(self._fd, blocks * block_bytes)
        self._meter = _Meter()
        self._times: dict[str, PullTimes] = {}
        settings = EngineSettings(
            node=node,
            port=self.port,
            peers=tuple(_peer(address) for address in peers),
            deadline_s=deadline_s,
            trace_dir=trace_dir,
            integrity=integrity,
            lanes=lanes,
        )
        self.supervisor = Supervisor(
            settings,
            compatibility(block_bytes),
            0,
            Tier(self._fd, blocks, block_bytes),
            self.ledger,
        )
        self.pulls = PullBook(
            self.ledger,
            self.supervisor,
            self._meter,
            deadline_s,
            self._note,
            lambda stored, evicted: None,
        )
        self.supervisor.start()
        try:
            self._wait_ready()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.supervisor.shutdown()
        self._mapping.close()
        os.close(self._fd)
        self.ledger.close()

    # --- the tier ----------------------------------------------------------------------

    def store(self, keys: bytes, *, write: bool) -> None:
        """Publish blocks as the engine's workers would; `write` puts into each its own word."""
        allocated = self.ledger.allocate(len(keys) // KEY_SIZE, FILLING)
        if allocated is None:
            raise HelperFailed("the stand-in's tier is too small for what it is to store")
        slots, _ = allocated
        if write:
            self._cells()[_ids(slots)] = _words(keys)[:, None]
        if any(self.ledger.publish(slots, keys, False)):
            raise HelperFailed("the stand-in could not publish what it stored")

    def check(self, keys: bytes) -> None:
        """Raises HelperFailed unless the tier holds for each key what `store` wrote."""
        slots = self.ledger.pin_prefix(keys)
        try:
            cells = self._cells()[_ids(slots)]
            whole = len(slots) // 8 == len(keys) // KEY_SIZE
            if not whole or (cells != _words(keys)[:, None]).any():
                raise HelperFailed("a pull brought other bytes than its source has")
        finally:
            self.ledger.unpin_many(slots)

    def _cells(self) -> NDArray[np.uint64]:
        """The tier as rows of words. Not kept: the mapping cannot be closed meanwhile."""
        return np.frombuffer(self._mapping, np.uint64).reshape(self.ledger.blocks, -1)

    # --- pulling -----------------------------------------------------------------------

    def start_pull(self, request: str, peer: str, keys: bytes) -> None:
        self.pulls.start(request, peer, (KeyGroup(keys, TOKENS_PER_KEY, 0),))

    def step(self) -> None:
        """One turn of the scheduler."""
        self.pulls.drain()
        self.pulls.start_waiting()

    def wait(self, requests: Iterable[str], limit_s: float = 120.0) -> None:
        """Step until none of the requests waits any more."""
        until = time.monotonic() + limit_s
        waiting = list(requests)
        while True:
            self.step()
            waiting = [request for request in waiting if self.pulls.pending(request)]
            if not waiting:
                return
            if time.monotonic() > until:
                raise HelperFailed(f"{len(waiting)} pulls have not ended within {limit_s:g} s")
            time.sleep(LOOK_S)

    def end(self, request: str) -> PullTimes:
        """End a request whose pull has brought all of its blocks."""
        self.pulls.looked_up(request)
        self.pulls.finished(request)
        times = self._times.pop(request, None)
        if times is None:
            raise HelperFailed(f"a pull brought nothing: {self._meter.misses[-1:]}")
        return times

    def pull(self, request: str, peer: str, keys: bytes) -> PullTimes:
        self.start_pull(request, peer, keys)
        self.wait([request])
        return self.end(request)

    def _note(self, event: str, **fields: Any) -> None:
        if event == "pull_adopted":
            started = fields["started"]
            self._times[fields["request"]] = PullTimes(
                fields["granted"] - started,
                fields["read"] - started,
                fields["confirmed"] - started,
                started,
            )

    # --- helpers -----------------------------------------------------------------------

    def helpers(self) -> dict[str, HelperProcess]:
        generation = self.supervisor.generation
        if generation is None or generation.initiator is None:
            raise HelperFailed("the stand-in's helpers are not running")
        return {
            "control": generation.control,
            "target": generation.target,
            "initiator": generation.initiator,
        }

    def count(self, role: str, name: str) -> int:
        return self.ledger.counters(role).read()[name]

    def wait_count(self, role: str, name: str, at_least: int) -> None:
        """Wait until the helper of that role has counted so many. Raises HelperFailed."""
        until = time.monotonic() + READY_S
        while self.count(role, name) < at_least:
            if time.monotonic() > until:
                raise HelperFailed(f"no {at_least} {name} within {READY_S:g} s")
            time.sleep(0.005)

    def _wait_ready(self) -> None:
        for name in ("targets_ready", "initiators_ready"):
            self.wait_count("control", name, 1)


def _peer(address: str) -> PeerAddress:
    host, _, port = address.rpartition(":")
    return PeerAddress(name=address, host=host, port=int(port))


def _ids(slots: bytes) -> NDArray[np.uint32]:
    return np.frombuffer(block_ids(slots), np.uint32)


def _words(keys: bytes) -> NDArray[np.uint64]:
    """A word per key that stands for it: the beginning of its hash."""
    return np.frombuffer(keys, np.uint8).reshape(-1, KEY_SIZE)[:, :8].copy().view(np.uint64)[:, 0]
