"""Names of peers: a resolver that hangs holds up nobody but those who asked for the name."""

import logging
import random
import threading
from collections.abc import Iterator

import pytest

from mpkv.control.destination.session import Failure, Session
from mpkv.control.destination.sessions import HANDSHAKE_S, Sessions
from mpkv.control.network.addresses import join_address, split_address
from mpkv.control.network.names import BAD_S, GOOD_S, MAX_PENDING, THREADS, Names
from mpkv.control.network.wire import Hello, ToSource, Welcome
from mpkv.control.say_once import LINES_PER_PERIOD, PERIOD_S, REMEMBERED, SayOnce
from mpkv.memory import Ledger
from tests.control.common import wait_for
from tests.control.destination.modelled import start_message


class Resolver:
    """A resolver that answers when it is told to."""

    def __init__(self) -> None:
        self.answers = {"known.example": "10.1.1.1"}
        self.asked: list[str] = []
        self.go_on = threading.Event()
        self.woken = threading.Semaphore(0)
        self.names = Names(self.woken.release, self.look_up)

    def look_up(self, host: str) -> str:
        self.asked.append(host)
        if host.startswith("hanging"):
            assert self.go_on.wait(20.0)
        if host.startswith("odd"):
            raise ValueError("embedded null character")
        if host not in self.answers:
            raise OSError(2, "no such name")
        return self.answers[host]

    def wait_woken(self) -> None:
        assert self.woken.acquire(timeout=20.0)


@pytest.fixture
def resolver() -> Iterator[Resolver]:
    made = Resolver()
    yield made
    made.go_on.set()


def test_answers_come_later_and_are_kept_for_a_while(resolver: Resolver) -> None:
    names = resolver.names
    assert names.find("10.0.0.9", 0.0) == "10.0.0.9"
    assert names.find("::1", 0.0) == "::1"
    for name in ("known.example", "unknown.example"):
        assert names.find(name, 0.0) is None
        resolver.wait_woken()
    assert names.find("known.example", 1.0) == "10.1.1.1"
    error = names.find("unknown.example", 1.0)
    assert isinstance(error, OSError)
    assert "no such name" in str(error)
    assert resolver.asked == ["known.example", "unknown.example"]
    # Later both are asked for again.
    assert names.find("unknown.example", 1.1 + BAD_S) is None
    assert names.find("known.example", 1.1 + GOOD_S) is None


def test_hanging_lookups_are_few_and_bounded(resolver: Resolver) -> None:
    names = resolver.names
    for number in range(MAX_PENDING):
        assert names.find(f"hanging-{number}", 0.0) is None
        assert names.find(f"hanging-{number}", 0.0) is None
    assert isinstance(names.find("one.more", 0.0), OSError)
    assert names.find("127.0.0.1", 0.0) == "127.0.0.1"
    wait_for(lambda: len(resolver.asked) == THREADS, "the threads to be busy")
    running = [thread for thread in threading.enumerate() if thread.name == "names"]
    assert len(running) >= THREADS
    assert len(resolver.asked) == THREADS


def test_a_resolver_that_fails_oddly_costs_no_thread(resolver: Resolver) -> None:
    names = resolver.names
    for number in range(2 * THREADS):
        assert names.find(f"odd-{number}", 0.0) is None
    assert names.find("known.example", 0.0) is None
    for _ in range(2 * THREADS + 1):
        resolver.wait_woken()
    assert names.find("known.example", 0.1) == "10.1.1.1"
    error = names.find("odd-0", 0.1)
    assert isinstance(error, OSError)
    assert "null character" in str(error)


class Recorder:
    """A network and a listener to sessions."""

    def __init__(self) -> None:
        self.connected: list[str] = []
        self.sent: list[ToSource] = []
        self.down: list[tuple[str, str]] = []

    def connect(self, endpoint: str) -> bytes:
        self.connected.append(endpoint)
        return b"route-%d" % len(self.connected)

    def disconnect(self, endpoint: str) -> None:
        self.connected.remove(endpoint)

    def send(self, route: bytes, message: ToSource) -> bool:
        self.sent.append(message)
        return True

    def session_up(self, session: Session, welcome: Welcome, now: float) -> None: ...

    def session_interrupted(self, session: Session, now: float) -> None: ...

    def instance_lost(self, session: Session, why: Failure, now: float) -> None: ...

    def session_down(self, session: Session, why: Failure, now: float) -> None:
        self.down.append((session.address, why.detail))


def test_a_name_that_hangs_costs_its_own_session_a_handshake(resolver: Resolver) -> None:
    ledger = Ledger.create(8, 36)
    recorder = Recorder()
    sessions = Sessions(
        start_message("d", "d-1", 8),
        recorder,
        resolver.names,
        lambda: 0,
        recorder,
        ledger.counters("control"),
        random.Random(1),
    )
    for address in ("hanging.example:1", "10.0.0.7:7", "known.example:2"):
        assert isinstance(sessions.want(address, 0.0), Session)
    assert recorder.connected == ["10.0.0.7:7"]
    resolver.wait_woken()
    sessions.tick(0.1)
    assert recorder.connected == ["10.0.0.7:7", "10.1.1.1:2"]
    assert [type(message) for message in recorder.sent] == [Hello, Hello]
    # What libzmq says of the numeric address concerns the name.
    sessions.connect_failed("10.1.1.1:2", 0.2)
    assert recorder.down == [("known.example:2", "nothing answers at known.example:2")]
    sessions.tick(1.5)
    sessions.tick(HANDSHAKE_S)
    ((address, detail),) = [entry for entry in recorder.down if entry[0].startswith("hanging")]
    assert address == "hanging.example:1"
    assert "did not get an address from its name" in detail
    ledger.close()


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("host-1.example:7710", ("host-1.example", 7710)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:7710", ("::1", 7710)),
        ("[fd00::2]:65535", ("fd00::2", 65535)),
        ("::1:7710", None),
        ("[host]:7710", None),
        ("[]:7710", None),
        ("host", None),
        (":7710", None),
        ("host:0", None),
        ("host:65536", None),
        ("host:77a", None),
        ("a b:1", None),
        ("tcp://host:1", None),
        (f"{'h' * 301}:1", None),
    ],
)
def test_addresses(address: str, parts: tuple[str, int] | None) -> None:
    assert split_address(address) == parts
    if parts is not None:
        assert join_address(*parts) == address


def test_warnings_are_said_once_boundedly_and_never_fall_silent_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    say = SayOnce(logging.getLogger("mpkv.control"))
    for _ in range(3):
        say("the same", 0.0)
    assert [record.message for record in caplog.records] == ["the same"]
    for number in range(5000):
        say(f"flood {number}", 1.0)
    assert len(caplog.records) == LINES_PER_PERIOD
    say("news", PERIOD_S)
    assert [record.message for record in caplog.records][-2:] == [
        f"{5001 - LINES_PER_PERIOD} more such warnings",
        "news",
    ]
    for period in range(2, 2 + 2 * REMEMBERED // LINES_PER_PERIOD):
        for number in range(LINES_PER_PERIOD):
            say(f"{period}.{number}", period * PERIOD_S)
    before = len(caplog.records)
    say("the same", 10_000.0)
    assert len(caplog.records) == before + 1
