"""Which peers an initiator is told of, and whose fault it is when one hangs or dies."""

from collections.abc import Iterator

import msgspec
import pytest

from mpkv.control.destination.initiators import (
    CULPRIT_BACKOFF_S,
    GIVES_UP_S,
    MOST_FORGOTTEN,
    REGISTER_AT_MOST_S,
    REGISTER_BACKOFF_S,
    REGISTER_S,
    Initiators,
    State,
)
from mpkv.control.network.wire import Welcome
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
    return Welcome(instance, "node", f"{instance}.target", b"md", 4096, 8, 4096, b"")


@pytest.fixture
def initiators() -> Iterator[Initiators]:
    ledger = Ledger.create(8, 36)
    yield Initiators(ledger.counters("control"), lambda now: None)
    ledger.close()


def add(initiators: Initiators, *names: str, at: float = 0.0) -> None:
    for name in names:
        initiators.add(welcome(name), f"{name}.example:7710", at)


def state(initiators: Initiators, name: str, at: float) -> State:
    registration = initiators.registration(name, at)
    assert registration is not None
    return registration.state


def test_peers_wait_for_the_initiator_and_each_new_one_gets_them_all(
    initiators: Initiators,
) -> None:
    add(initiators, "a")
    first, second = Process(), Process()
    initiators.adopt(first, 0.0)
    assert not initiators.usable
    assert first.told == []
    initiators.ready(0.0)
    add(initiators, "b", "b")
    # One at a time.
    assert first.added() == ["a"]
    assert initiators.added("a", 0.0)
    assert first.added() == ["a", "b"]
    initiators.remove("b")
    assert first.told[-1] == RemovePeer("b")
    assert not initiators.added("b", 0.0)
    initiators.adopt(second, 1.0)
    assert first.closed
    initiators.ready(1.0)
    assert second.added() == ["a"]
    assert state(initiators, "a", 1.0) is State.ADDING


def test_a_full_ring_delays_peers_and_refuses_reads(initiators: Initiators) -> None:
    process = Process(room=1)
    initiators.adopt(process, 0.0)
    initiators.ready(0.0)
    add(initiators, "a", "b", "c")
    initiators.added("a", 0.0)
    assert process.added() == ["a"]
    assert not initiators.read(Read(1, "a", b"", b""))
    process.room = 100
    initiators.tick(0.1)
    initiators.added("b", 0.1)
    assert process.added() == ["a", "b", "c"]
    assert initiators.read(Read(1, "a", b"", b""))


def test_the_peer_in_which_an_initiator_hangs_does_not_hang_the_next(
    initiators: Initiators,
) -> None:
    process, successor = Process(), Process()
    initiators.adopt(process, 0.0)
    initiators.ready(0.0)
    add(initiators, "a", "b", "c")
    assert initiators.added("a", 1.0)
    assert initiators.tick(2.0) == 1.0 + REGISTER_S
    hung_at = 1.1 + REGISTER_S
    for second in range(3, int(hung_at) + 1):
        initiators.tick(float(second))
        assert not process.killed
    initiators.tick(hung_at)
    assert process.killed
    assert not initiators.usable
    assert initiators.expected(hung_at)
    initiators.adopt(successor, 20.0)
    initiators.ready(20.0)
    initiators.added("a", 20.0)
    initiators.added("c", 20.0)
    assert successor.added() == ["a", "c"]
    assert state(initiators, "b", 20.0) is State.FAILED
    # Later somebody may try once more.
    initiators.registration("b", hung_at + CULPRIT_BACKOFF_S)
    assert successor.added() == ["a", "c", "b"]


def test_a_pause_of_the_machine_is_no_hang(initiators: Initiators) -> None:
    process = Process()
    initiators.adopt(process, 0.0)
    initiators.ready(0.0)
    add(initiators, "a")
    initiators.tick(1.0)
    initiators.tick(1.0 + 2 * REGISTER_S)
    assert not process.killed
    for second in range(1, int(REGISTER_S) + 1):
        initiators.tick(1.0 + 2 * REGISTER_S + second)
    assert process.killed, "but it hangs all the same"


def test_a_registration_behind_reads_that_go_on_is_no_hang(initiators: Initiators) -> None:
    process = Process()
    initiators.adopt(process, 0.0)
    initiators.ready(0.0)
    add(initiators, "a")
    for second in range(1, int(REGISTER_AT_MOST_S)):
        initiators.read_done(float(second))
        initiators.tick(float(second))
    assert not process.killed
    for second in range(int(REGISTER_AT_MOST_S), int(REGISTER_AT_MOST_S + REGISTER_S) + 2):
        initiators.read_done(float(second))
        initiators.tick(float(second))
    assert process.killed, "not for ever"


def test_the_peer_of_which_initiators_die_is_tried_last_and_then_left_alone(
    initiators: Initiators,
) -> None:
    processes = [Process() for _ in range(3)]
    initiators.adopt(processes[0], 0.0)
    initiators.ready(0.0)
    add(initiators, "evil", "a", "b")
    initiators.gone(0.1)
    assert not initiators.expected(0.1)
    # A death may be a chance: one more try, but after everybody else.
    initiators.adopt(processes[1], 2.0)
    initiators.ready(2.0)
    for name in ("a", "b"):
        assert initiators.added(name, 2.0)
    assert processes[1].added() == ["a", "b", "evil"]
    initiators.gone(2.1)
    assert state(initiators, "evil", 2.1) is State.FAILED
    # Its next life, at the same address, is not trusted any sooner.
    initiators.remove("evil")
    initiators.add(welcome("evil2"), "evil.example:7710", 3.0)
    initiators.adopt(processes[2], 4.0)
    initiators.ready(4.0)
    for name in ("a", "b"):
        assert initiators.added(name, 4.0)
    assert processes[2].added() == ["a", "b"]
    assert state(initiators, "evil2", 2.0 + CULPRIT_BACKOFF_S) is State.FAILED
    assert state(initiators, "evil2", 2.1 + CULPRIT_BACKOFF_S) is State.ADDING
    assert initiators.added("evil2", 130.0)


def test_an_initiator_ended_on_purpose_blames_nobody(initiators: Initiators) -> None:
    first, second = Process(), Process()
    initiators.adopt(first, 0.0)
    initiators.ready(0.0)
    add(initiators, "a")
    initiators.kill("a READ failed", 0.1)
    initiators.adopt(second, 0.2)
    initiators.ready(0.2)
    assert second.added() == ["a"]


def test_the_peer_that_holds_up_what_others_wait_for_comes_last_and_is_left_alone(
    initiators: Initiators,
) -> None:
    """READs have shorter deadlines than registrations: theirs may be over first."""
    processes = [Process() for _ in range(3)]
    add(initiators, "evil", "a")
    for number, tried in enumerate((["evil"], ["a", "evil"], ["a"])):
        at = 20.0 * number
        initiators.adopt(processes[number], at)
        initiators.ready(at)
        if "a" in tried:
            assert initiators.added("a", at)
        assert processes[number].added() == tried
        initiators.kill("a READ from a goes on", at + GIVES_UP_S + 0.1)
    assert state(initiators, "evil", 60.0) is State.FAILED


def test_who_died_once_by_chance_is_soon_tried_again(initiators: Initiators) -> None:
    first, second = Process(), Process()
    initiators.adopt(first, 0.0)
    initiators.ready(0.0)
    add(initiators, "a")
    initiators.gone(0.1)
    initiators.adopt(second, 0.3)
    initiators.ready(0.3)
    assert second.added() == []
    assert state(initiators, "a", 0.1 + REGISTER_BACKOFF_S) is State.ADDING


def test_a_peer_that_stopped_working_is_added_again_after_a_while(
    initiators: Initiators,
) -> None:
    process = Process()
    initiators.adopt(process, 0.0)
    initiators.ready(0.0)
    add(initiators, "a")
    assert initiators.added("a", 0.0)
    assert initiators.failed("a", "connection lost", 5.0)
    for now, times in ((5.5, 1), (6.5, 2)):
        initiators.registration("a", now)
        assert process.added() == ["a"] * times
    assert not initiators.failed("unknown", "", 7.0)


def come_and_go(initiators: Initiators, names: list[str]) -> None:
    for name in names:
        add(initiators, name)
        assert initiators.added(name, 0.0)
        initiators.remove(name)


def test_an_initiator_that_forgot_many_peers_is_renewed(initiators: Initiators) -> None:
    process, successor = Process(room=1000), Process()
    initiators.adopt(process, 0.0)
    initiators.ready(0.0)
    add(initiators, "stays")
    assert initiators.added("stays", 0.0)
    come_and_go(initiators, [f"peer {number}" for number in range(MOST_FORGOTTEN - 1)])
    initiators.renew(1.0)
    assert not process.killed
    come_and_go(initiators, ["last"])
    initiators.renew(2.0)
    assert process.killed
    assert initiators.expected(2.0)
    # The next begins anew, with who is left.
    initiators.adopt(successor, 2.5)
    initiators.ready(2.5)
    initiators.renew(2.5)
    assert successor.added() == ["stays"]
    assert not successor.killed


def test_many_living_peers_are_not_registered_again_for_a_few_that_left(
    initiators: Initiators,
) -> None:
    process = Process(room=1000)
    initiators.adopt(process, 0.0)
    initiators.ready(0.0)
    for number in range(2 * MOST_FORGOTTEN):
        add(initiators, f"stays {number}")
        assert initiators.added(f"stays {number}", 0.0)
    come_and_go(initiators, [f"peer {number}" for number in range(2 * MOST_FORGOTTEN - 1)])
    initiators.renew(1.0)
    assert not process.killed
    come_and_go(initiators, ["last"])
    initiators.renew(2.0)
    assert process.killed
