"""One end of a bare NIXL READ: exposes memory, or READs a peer's into its own.

Nothing of mpkv is between the calls but the thin file that makes them.
"""

import base64
import mmap
import os
import random
import time
from typing import Any

from mpkv.registration.bindings import prepare_environment
from mpkv_cli.bench.worker import serve

prepare_environment()
# UCX then says, in this worker's log, by what it READs.
os.environ.setdefault("UCX_PROTO_INFO", "y")

import numpy as np  # noqa: E402

from mpkv.memory import create_segment, map_segment  # noqa: E402
from mpkv.registration.agent import Agent  # noqa: E402

BACKENDS = ("UCX",)
READ_S = 60.0


class End:
    """Methods are called by name; see `mpkv_cli.bench.worker`."""

    def open(self, name: str, blocks: int, block_bytes: int, progress: bool) -> dict[str, Any]:
        """Make an agent with registered memory; what the other end needs of it."""
        self._blocks, self._block_bytes = blocks, block_bytes
        self._next = 0
        self._agent = Agent(name, BACKENDS, progress_thread=progress)
        self._mapping: mmap.mmap = map_segment(create_segment("mpkv-bench", blocks * block_bytes))
        np.frombuffer(self._mapping, np.uint8)[:: mmap.PAGESIZE] = 1
        self._base = self._agent.register(self._mapping)
        metadata = base64.b64encode(self._agent.metadata()).decode()
        return {"metadata": metadata, "base": self._base, "blocks": blocks}

    def connect(self, metadata: str, base: int, blocks: int) -> None:
        self._peer = self._agent.add_peer(base64.b64decode(metadata))
        self._agent.connect(self._peer)
        self._peer_base = base
        self._peer_blocks = blocks
        self._local = self._agent.prepare_local(self._base, self._block_bytes, self._blocks)
        self._remote = self._describe(blocks)

    def describe_s(self, blocks: int, repeats: int) -> list[float]:
        """Seconds to describe that many blocks of the peer to NIXL."""
        seconds = []
        for _ in range(repeats):
            started = time.perf_counter()
            handle = self._describe(blocks)
            seconds.append(time.perf_counter() - started)
            self._agent.release_blocks(handle)
        return seconds

    def read_run(self, count: int, post: int, repeats: int) -> list[float]:
        """Seconds to READ `count` blocks in order, `post` at a time."""
        remote = np.arange(count, dtype=np.int32)
        cuts = range(0, count, post)
        seconds = []
        for _ in range(repeats):
            local = remote + np.int32(self._landing(count))
            handles = [
                self._agent.make_read(
                    self._local, local[at : at + post], self._remote, remote[at : at + post]
                )
                for at in cuts
            ]
            seconds.append(self._seconds(handles))
        return seconds

    def read_random(self, count: int, repeats: int) -> list[float]:
        """Seconds to READ `count` blocks from anywhere to anywhere, in one post."""
        seconds = []
        for _ in range(repeats):
            sides = [
                np.array(random.sample(range(blocks), count), np.int32)
                for blocks in (self._blocks, self._peer_blocks)
            ]
            handle = self._agent.make_read(self._local, sides[0], self._remote, sides[1])
            seconds.append(self._seconds([handle]))
        return seconds

    def read_merged(self, count: int, repeats: int) -> list[float]:
        """Seconds to READ the bytes of `count` blocks as one piece."""
        length = count * self._block_bytes
        seconds = []
        for _ in range(repeats):
            local = self._base + self._landing(count) * self._block_bytes
            handle = self._agent.make_small_read(self._peer, local, self._peer_base, length)
            seconds.append(self._seconds([handle]))
        return seconds

    def _landing(self, count: int) -> int:
        """Where the next READ lands: round and round, as slots of a tier are used."""
        first = self._next if self._next + count <= self._blocks else 0
        self._next = first + count
        return first

    def _describe(self, blocks: int) -> int:
        return self._agent.prepare_remote(self._peer, self._peer_base, self._block_bytes, blocks)

    def _seconds(self, handles: list[int]) -> float:
        """One after the other; making the requests is not counted, releasing them neither."""
        started = time.perf_counter()
        for handle in handles:
            done = self._agent.post(handle)
            while not done:
                if time.perf_counter() - started > READ_S:
                    raise TimeoutError(f"a READ takes longer than {READ_S:g} s")
                done = self._agent.poll(handle)
        seconds = time.perf_counter() - started
        for handle in handles:
            self._agent.release(handle)
        return seconds


if __name__ == "__main__":
    end = End()
    serve(
        {
            name: getattr(end, name)
            for name in ("open", "connect", "describe_s", "read_run", "read_random", "read_merged")
        }
    )
    # Tearing agents down can hang; the end of the process ends them anyway.
    os._exit(0)
