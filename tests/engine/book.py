"""A `PullBook` on real rings and a real ledger, with a control plane that the test plays.

Playing it is the point: it says what a dead or a broken one would say.
"""

import mmap
import struct
import time
from collections import deque

import msgspec

from mpkv.engine.pull_book import PullBook
from mpkv.engine.supervisor import TO_CONTROL_BYTES, Link
from mpkv.memory import Consumer, Ledger, Producer, Ring
from mpkv.messages import KeyGroup, MissReason, Pull, Pulled, ToControl
from tests.support.standin import CONTENT, KEY_SIZE, RecordingMeter

BLOCKS = 64


class PlayedSupervisor:
    """Rings to a control plane that the test plays, and a way to declare it dead."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.dead: deque[int] = deque()
        self.distrusted: list[int] = []
        self._generation = 0
        self.next_generation()

    def next_generation(self) -> None:
        if self._generation:
            self.dead.append(self._generation)
        self._generation += 1
        self._rings = [
            Ring.create(TO_CONTROL_BYTES, name)
            for name in ("to-control", "to-engine", "to-control-early")
        ]
        self.pulls: Consumer = self._rings[0].consumer(-1)
        self.early: Consumer = self._rings[2].consumer(-1)
        self.answers: Producer = self._rings[1].producer(-1)
        self.link = Link(
            self._generation,
            self._rings[0].producer(-1),
            self._rings[2].producer(-1),
            self._rings[1].consumer(-1),
            self._rings[0].max_record,
            time.monotonic(),
        )

    def distrust(self, generation: int) -> None:
        self.distrusted.append(generation)

    def overwrite_answers(self) -> None:
        """Make the newest record claim an impossible length."""
        assert self.answers.push(b"x" * 16)
        with mmap.mmap(self._rings[1].fd, 0) as ring:
            at = ring.find(b"x" * 16)
            ring[at - 8 : at] = b"\xff" * 8

    def next_pull(self, early: bool = False) -> Pull:
        record = (self.early if early else self.pulls).pop()
        assert record is not None
        pull = msgspec.msgpack.decode(record, type=ToControl)
        assert isinstance(pull, Pull)
        return pull

    def say(self, message: msgspec.Struct) -> None:
        assert self.answers.push(msgspec.msgpack.encode(message))

    def say_pulled(self, pull: Pull, count: int) -> None:
        indexes = struct.pack(f"={count}I", *range(count))
        now = pull.started
        self.say(Pulled(pull.pull, indexes, pull.slots[: 8 * count], now, now, now))

    def say_part(
        self,
        pull: Pull,
        first: int,
        end: int,
        more: bool = True,
        missing: MissReason | None = None,
    ) -> None:
        """The keys from `first` to `end` have come, all before `first` already had."""
        indexes = struct.pack(f"={end - first}I", *range(first, end))
        now = pull.started
        slots = pull.slots[8 * first : 8 * end]
        self.say(Pulled(pull.pull, indexes, slots, now, now, now, more, missing))


class Book:
    def __init__(
        self, deadline_s: float = 60.0, head_start: float = 0.0, blocks: int = BLOCKS
    ) -> None:
        self.ledger = Ledger.create(blocks, KEY_SIZE)
        self.ledger.set_content(CONTENT)
        self.supervisor = PlayedSupervisor()
        self.meter = RecordingMeter()
        self.changes: list[tuple[bytes, bytes]] = []
        self.pulls = PullBook(
            self.ledger,
            self.supervisor,  # type: ignore[arg-type]
            self.meter,
            deadline_s,
            lambda event, **fields: None,
            lambda stored, evicted: self.changes.append((stored, evicted)),
            head_start,
        )

    def start(self, request: str, keys: list[bytes]) -> None:
        self.pulls.start(request, "peer:1", (KeyGroup(b"".join(keys), 16, 0),))

    def hits(self, keys: list[bytes]) -> int:
        return sum(self.ledger.find(key) >= 0 for key in keys)
