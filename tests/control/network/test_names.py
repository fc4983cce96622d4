"""Names of peers: a resolver that hangs holds up nobody but those who asked for the name."""

import logging
import random
import threading
from collections.abc import Iterator

import msgspec
import pytest

from mpkv.control.destination.session import Failure, Session
from mpkv.control.destination.sessions import HANDSHAKE_S, TRIES_PER_S, Sessions
from mpkv.control.network.addresses import join_address, split_address
from mpkv.control.network.names import (
    BAD_S,
    GOOD_S,
    MAX_PENDING,
    RENEWALS_PER_S,
    THREADS,
    Names,
)
from mpkv.control.network.wire import Hello, Refuse, ToSource, Welcome
from mpkv.control.say_once import LINES_PER_PERIOD, PERIOD_S, REMEMBERED, SayOnce
from mpkv.memory import Ledger
from tests.control.common import BLOCK_BYTES, CONTENT, wait_for
from tests.control.destination.modelled import start_message


class Resolver:
    """A resolver that answers when it is told to."""

    def __init__(self) -> None:
        self.answers = {"known.example": "10.1.1.1"}
        self.asked: list[str] = []
        self.hang = False
        self.go_on = threading.Event()
        self.woken = threading.Semaphore(0)
        self.names = Names(self.woken.release, self.look_up)

    def unanswered(self) -> bool:
        """Whether lookups are under way, other than those that hang."""
        return not self.hang and bool(self.names._pending) and self.names._answers.empty()

    def look_up(self, host: str) -> str:
        self.asked.append(host)
        if self.hang or host.startswith("hanging"):
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
        ledger,
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


# --- peers that come back elsewhere ----------------------------------------------------


class Seeker:
    """Sessions that look for one named peer, in a time of their own."""

    def __init__(self, resolver: Resolver, peers: tuple[str, ...] = ("known.example:2",)) -> None:
        self.resolver = resolver
        self.network = Recorder()
        self.now = 0.0
        self._ledger = Ledger.create(8, 36)
        start = msgspec.structs.replace(start_message("d", "d-1", 8), peers=peers)
        self.sessions = Sessions(
            start,
            self.network,
            resolver.names,
            self._ledger,
            self.network,
            self._ledger.counters("control"),
            random.Random(1),
        )

    def run(self, for_s: float, *, refused: bool = False) -> None:
        """Let time pass; `refused`: nothing listens at whatever is connected to."""
        until = self.now + for_s
        while self.now < until:
            self.now += 0.02
            self.sessions.tick(self.now)
            if refused:
                for endpoint in list(self.network.connected):
                    self.sessions.connect_failed(endpoint, self.now)
            wait_for(lambda: not self.resolver.unanswered(), "the lookups")

    def session(self) -> Session:
        found = self.sessions.want("known.example:2", self.now)
        assert isinstance(found, Session)
        return found

    def welcomed(self, instance: str) -> None:
        welcome = Welcome(instance, "n", f"{instance}.t", b"md", 0, 64, BLOCK_BYTES, CONTENT)
        self.sessions.welcome(self.session(), welcome, self.now)

    def up(self) -> None:
        self.run(0.1)
        self.welcomed("s-1")
        assert self.network.connected == ["10.1.1.1:2"]
        self.resolver.answers["known.example"] = "10.2.2.2"

    def found(self) -> bool:
        return self.network.connected == ["10.2.2.2:2"]


@pytest.fixture
def seeker(resolver: Resolver) -> Seeker:
    return Seeker(resolver)


def test_a_peer_that_closed_its_connections_is_found_elsewhere(seeker: Seeker) -> None:
    seeker.up()
    seeker.sessions.disconnected("10.1.1.1:2", seeker.now)
    seeker.run(0.1)
    assert seeker.found()
    seeker.welcomed("s-2")
    assert seeker.session().instance == "s-2"


def test_a_peer_that_is_nowhere_for_long_is_found_within_a_second(seeker: Seeker) -> None:
    seeker.up()
    del seeker.resolver.answers["known.example"]
    seeker.sessions.disconnected("10.1.1.1:2", seeker.now)
    seeker.run(30.0, refused=True)
    # Its name comes first, then its address, and then it listens.
    seeker.resolver.answers["known.example"] = "10.2.2.2"
    seeker.run(10.0, refused=True)
    seeker.run(1.0)
    assert seeker.found()


def test_a_peer_whose_host_vanished_is_found_elsewhere_before_its_silence_ends_it(
    seeker: Seeker,
) -> None:
    seeker.up()
    seeker.run(2.0)
    assert seeker.found()
    assert seeker.network.down == []


def test_an_address_where_packets_get_lost_does_not_hold_up_the_search(seeker: Seeker) -> None:
    seeker.run(0.1)
    assert seeker.network.connected == ["10.1.1.1:2"]
    seeker.resolver.answers["known.example"] = "10.2.2.2"
    # The handshake with nobody would take longer.
    seeker.run(1.0)
    assert seeker.found()


@pytest.mark.parametrize("stranger", ["welcomes", "refuses", "says nothing"])
def test_a_stranger_at_the_old_address_is_left(seeker: Seeker, stranger: str) -> None:
    seeker.up()
    seeker.sessions.disconnected("10.1.1.1:2", seeker.now)
    # Sooner than the name is looked up.
    if stranger == "welcomes":
        seeker.welcomed("stranger")
    elif stranger == "refuses":
        refusal = Refuse("stranger", "n", (), "another model")
        seeker.sessions.refuse(seeker.session(), refusal, seeker.now)
    seeker.run(1.0)
    assert seeker.found()


def test_who_answers_stays_where_it_is(seeker: Seeker) -> None:
    seeker.up()
    asked = len(seeker.resolver.asked)
    for _ in range(30):
        seeker.run(1.0)
        seeker.sessions.heard(seeker.session(), seeker.now)
    assert seeker.network.connected == ["10.1.1.1:2"]
    # Not a lookup more than to begin with.
    assert len(seeker.resolver.asked) == asked


def test_a_resolver_that_hangs_leaves_the_known_address(resolver: Resolver) -> None:
    resolver.answers["known.example"] = "10.1.1.1"
    seeker = Seeker(resolver)
    seeker.run(0.1)
    seeker.welcomed("s-1")
    resolver.hang = True
    seeker.sessions.end_all(seeker.now)
    assert seeker.network.connected == []
    seeker.run(1.5)
    assert seeker.network.connected == ["10.1.1.1:2"]


def test_hundreds_of_peers_that_are_down_make_no_storm(resolver: Resolver) -> None:
    peers = tuple(f"known-{n}.example:2" for n in range(500))
    resolver.answers |= {f"known-{n}.example": f"10.3.{n // 250}.{n % 250}" for n in range(500)}
    seeker = Seeker(resolver, peers)
    seeker.run(10.0, refused=True)
    tries, asked = len(seeker.network.sent), len(resolver.asked)
    seeker.run(10.0, refused=True)
    assert 500 <= len(seeker.network.sent) - tries <= 15 * TRIES_PER_S
    assert 500 <= len(resolver.asked) - asked <= 11 * RENEWALS_PER_S
    # Nobody is left out.
    assert len(set(resolver.asked[asked:])) == 500


def test_renewals_leave_room_for_names_that_are_new(resolver: Resolver) -> None:
    names = resolver.names
    for number in range(2 * MAX_PENDING):
        assert names.renewed(f"hanging-{number}", 0.0, 0.0) is None
        assert names.renewed(f"hanging-{number}", 1.0, 1.0) is None
    assert names.find("known.example", 1.0) is None


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
