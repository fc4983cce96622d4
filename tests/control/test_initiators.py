"""Which peers an initiator is told of, and what becomes of one that hangs."""

from collections.abc import Iterator

import msgspec
import pytest

from mpkv.control.initiators import HANGING_BACKOFF_S, REGISTER_S, Initiators, State
from mpkv.control.wire import Welcome
from mpkv.memory import Ledger
from mpkv.messages import AddPeer, Read, RemovePeer, ToInitiator


class Process:
    """An initiator's rings; `room` is how many records they take."""

    def __init__(self, room: int = 100) -> None:
        self.generation = 1
        self.room = room
        self.told: list[ToInitiator] = []
        self.killed = False
        self.closed = False

    def push(self, record: bytes) -> bool:
        if len(self.told) >= self.room:
            return False
        self.told.append(msgspec.msgpack.decode(record, type=ToInitiator))
        return True

    def fits(self, record: bytes) -> bool:
        return True

    def kill(self) -> None:
        self.killed = True

    def close(self) -> None:
        self.closed = True

    def added(self) -> list[str]:
        return [message.instance for message in self.told if isinstance(message, AddPeer)]


def welcome(instance: str) -> Welcome:
    return Welcome(instance, "node", f"{instance}.target", b"md", 4096, 8, 4096, 0)


@pytest.fixture
def initiators() -> Iterator[Initiators]:
    ledger = Ledger.create(8, 36)
    yield Initiators(ledger.counters("control"), lambda now: None)
    ledger.close()


def test_peers_wait_for_the_initiator_and_each_new_one_gets_them_all(
    initiators: Initiators,
) -> None:
    initiators.add(welcome("a"), 0.0)
    first, second = Process(), Process()
    initiators.adopt(first, 0.0)
    assert not initiators.usable
    assert first.told == []
    initiators.ready(0.0)
    initiators.add(welcome("b"), 0.0)
    initiators.add(welcome("b"), 0.0)
    assert first.added() == ["a", "b"]
    assert initiators.added("a")
    initiators.remove("b")
    assert first.told[-1] == RemovePeer("b")
    assert not initiators.added("b")
    initiators.adopt(second, 1.0)
    assert first.closed
    initiators.ready(1.0)
    assert second.added() == ["a"]
    registration = initiators.registration("a", 1.0)
    assert registration is not None
    assert registration.state is State.ADDING


def test_a_full_ring_delays_peers_and_refuses_reads(initiators: Initiators) -> None:
    process = Process(room=1)
    initiators.adopt(process, 0.0)
    initiators.ready(0.0)
    for name in "abc":
        initiators.add(welcome(name), 0.0)
    assert process.added() == ["a"]
    assert not initiators.read(Read(1, "a", b"", b""))
    process.room = 100
    initiators.tick(0.1)
    assert process.added() == ["a", "b", "c"]
    assert initiators.read(Read(1, "a", b"", b""))


def test_the_peer_in_which_an_initiator_hangs_does_not_hang_the_next(
    initiators: Initiators,
) -> None:
    process, successor = Process(), Process()
    initiators.adopt(process, 0.0)
    initiators.ready(0.0)
    for at, name in enumerate("abc"):
        initiators.add(welcome(name), float(at))
    assert initiators.added("a")
    assert initiators.tick(2.0) == 1.0 + REGISTER_S
    hung_at = 1.1 + REGISTER_S
    initiators.tick(hung_at)
    assert process.killed
    assert not initiators.usable
    initiators.adopt(successor, 20.0)
    initiators.ready(20.0)
    assert successor.added() == ["a", "c"]
    registration = initiators.registration("b", 20.0)
    assert registration is not None
    assert registration.state is State.FAILED
    # Later somebody may try once more.
    initiators.registration("b", hung_at + HANGING_BACKOFF_S)
    assert successor.added() == ["a", "c", "b"]


def test_a_peer_that_stopped_working_is_added_again_after_a_while(
    initiators: Initiators,
) -> None:
    process = Process()
    initiators.adopt(process, 0.0)
    initiators.ready(0.0)
    initiators.add(welcome("a"), 0.0)
    assert initiators.added("a")
    assert initiators.failed("a", "connection lost", 5.0)
    for now, times in ((5.5, 1), (6.5, 2)):
        initiators.registration("a", now)
        assert process.added() == ["a"] * times
    assert not initiators.failed("unknown", "", 7.0)
