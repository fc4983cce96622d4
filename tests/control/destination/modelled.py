"""The parts of the world that are models: the initiator, its READs, the engine's pulls."""

from collections import deque
from dataclasses import dataclass, field

import msgspec

from mpkv.cluster.settings import Integrity
from mpkv.messages import ControlStart, MissReason, Read, RingEnds, Tier, ToInitiator
from tests.control.common import BLOCK_BYTES, COMPATIBILITY

DEADLINE_S = 10.0


def start_message(
    node: str, instance: str, blocks: int, integrity: Integrity = Integrity.OFF
) -> ControlStart:
    none = RingEnds(-1, -1)
    return ControlStart(
        node=node,
        instance=instance,
        listen="10.0.0.1",
        port=7710,
        advertise=f"{node}.example",
        peers=(),
        compatibility=COMPATIBILITY,
        tier=Tier(-1, blocks, BLOCK_BYTES),
        ledger_fd=-1,
        engine_pidfd=-1,
        target_pidfd=-1,
        supervisor_fd=-1,
        wake_fd=-1,
        from_engine=(),
        to_engine=none,
        from_target=none,
        deadline_s=DEADLINE_S,
        integrity=integrity,
        trace_dir="",
    )


@dataclass
class Running:
    """A READ that an initiator has begun: it may write until it is done or reaped."""

    read: Read
    began_with: list[bytes]
    reported: bool = False


@dataclass
class ModelInitiator:
    """One initiator process; `killed` ones still write until they are reaped."""

    generation: int
    inbox: deque[ToInitiator] = field(default_factory=deque)
    running: list[Running] = field(default_factory=list)
    killed: bool = False
    closed: bool = False

    def push(self, record: bytes) -> bool:
        if len(self.inbox) >= 8:
            return False
        self.inbox.append(msgspec.msgpack.decode(record, type=ToInitiator))
        return True

    def fits(self, record: bytes) -> bool:
        return True

    def kill(self) -> None:
        self.killed = True

    def close(self) -> None:
        self.closed = True


@dataclass
class EnginePull:
    wanted: list[bytes]
    slots: bytes
    epoch: int
    weights: int
    state: str = "open"
    reason: MissReason | None = None
    # The indexes that have come, part by part.
    brought: list[int] = field(default_factory=list)
