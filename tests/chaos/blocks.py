"""The blocks of one engine: what is stored and loaded over time, and all comparing of bytes."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpkv.memory import FILLING, block_ids
from tests.chaos.orders import Wrong
from tests.chaos.pattern import content, difference
from tests.support.standin import StandIn

# Stores and loads take up to so long, as copies between GPU and CPU do.
COPY_S = 0.01
NO_PIN = b"\xff" * 8


class ChaosStandIn(StandIn):
    """A stand-in whose blocks name the weights too."""

    weights = 0

    def know(self) -> None:
        """As when the workers have looked at their weights."""
        self.ledger.set_content(f"weights {self.weights}".ljust(16).encode())

    def content(self, key: bytes) -> bytes:
        return content(key, self.weights, self.block_bytes)


@dataclass
class Copy:
    """A store or load under way, of the weights that there were when it began."""

    slots: bytes
    keys: list[bytes]
    weights: int
    until: float
    stale: bool = False


class Blocks:
    def __init__(
        self, engine: ChaosStandIn, choices: random.Random, tell: Callable[[Wrong], None]
    ) -> None:
        self.compared = 0
        self._engine = engine
        self._choices = choices
        self._tell = tell
        self._told: set[str] = set()
        self._loads: list[Copy] = []
        self._stores: list[Copy] = []

    @property
    def idle(self) -> bool:
        return not (self._loads or self._stores)

    def missing(self, keys: list[bytes]) -> list[bytes]:
        find = self._engine.ledger.find
        return [key for key in keys if find(key) < 0]

    def hit(self, key: bytes) -> bool:
        """Look `key` up; if it is here, compare every byte."""
        block = self._engine.ledger.find(key)
        if block < 0:
            return False
        self._compare(block, key, self._engine.weights, "a lookup says hit")
        return True

    def begin_load(self, keys: list[bytes]) -> None:
        """Pin what is here; the bytes must stay as they are until the load has ended."""
        pinned = self._engine.ledger.pin_many(b"".join(keys))
        slots = [pinned[at : at + 8] for at in range(0, len(pinned), 8)]
        held = [pair for pair in zip(slots, keys, strict=True) if pair[0] != NO_PIN]
        if held:
            load = self._copy(b"".join(slot for slot, _ in held), [key for _, key in held])
            self._loads.append(load)

    def begin_store(self, keys: list[bytes]) -> None:
        """Begin to write those of `keys` that are neither here nor on their way."""
        filling = {key for store in self._stores for key in store.keys}
        missing = [key for key in self.missing(keys) if key not in filling]
        allocated = self._engine.ledger.allocate(len(missing), FILLING) if missing else None
        if allocated is not None:
            store = self._copy(allocated[0], missing)
            self._write(store, first_half=True)
            self._stores.append(store)

    def store_now(self, keys: list[bytes]) -> None:
        """Store as many of `keys` as there is room for."""
        while keys:
            allocated = self._engine.ledger.allocate(len(keys), FILLING)
            if allocated is not None:
                self._finish_store(self._copy(allocated[0], keys))
                return
            keys = keys[: len(keys) // 2]

    def step(self) -> None:
        now = time.monotonic()
        for load in [load for load in self._loads if load.until <= now]:
            self._loads.remove(load)
            for block, key in zip(_blocks(load.slots), load.keys, strict=True):
                self._compare(block, key, load.weights, "a pinned block has changed")
            self._engine.ledger.unpin_many(load.slots)
        for store in [store for store in self._stores if store.until <= now]:
            self._stores.remove(store)
            self._finish_store(store)

    def reset(self) -> None:
        """Workers go on with the stores they were given; nothing of them counts."""
        for store in self._stores:
            store.stale = True

    def _copy(self, slots: bytes, keys: list[bytes]) -> Copy:
        until = time.monotonic() + self._choices.uniform(0, COPY_S)
        return Copy(slots, keys, self._engine.weights, until)

    def _finish_store(self, store: Copy) -> None:
        self._write(store, first_half=False)
        if store.stale:
            self._engine.ledger.free(store.slots)
        else:
            self._engine.ledger.publish(store.slots, b"".join(store.keys), False)

    def _write(self, store: Copy, *, first_half: bool) -> None:
        size = self._engine.block_bytes
        part = slice(0, size // 2) if first_half else slice(0, size)
        for block, key in zip(_blocks(store.slots), store.keys, strict=True):
            start = block * size
            written = content(key, store.weights, size)[part]
            self._engine.tier[start : start + len(written)] = written

    def _compare(self, block: int, key: bytes, weights: int, what: str) -> None:
        size = self._engine.block_bytes
        found = self._engine.tier[block * size : (block + 1) * size]
        self.compared += 1
        if found != content(key, weights, size):
            name = key.rstrip(b"\0.").decode()
            text = f"{what}: {name!r} of weights {weights} in block {block}, "
            text += difference(found, key, weights)
            if text not in self._told:
                self._told.add(text)
                self._tell(Wrong(text))


def _blocks(slots: bytes) -> Sequence[int]:
    return memoryview(block_ids(slots)).cast("I")
