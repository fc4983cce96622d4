"""What a hostile or broken peer can send, to real control planes."""

import contextlib
import itertools
import os
import pickle
import random
import socket
import struct
from collections.abc import Callable

import msgspec
import pytest
import zmq

from mpkv.control.network.wire import (
    MAX_KEYS,
    PROTOCOL,
    Ask,
    Confirm,
    Confirmed,
    Denial,
    Denied,
    Grant,
    Hello,
    Loss,
    NotConfirmed,
    Ping,
    Pong,
    Refuse,
    Release,
    Welcome,
    encode,
    max_message,
    pack_runs,
)
from mpkv.messages import KeyGroup, MissReason, Pulled, PullFailed
from tests.control.common import BLOCK_BYTES, COMPATIBILITY, CONTENT, KEY_SIZE, keys, u32, wait_for
from tests.control.harness import Plane
from tests.control.raw import RawPeer, RawSource, open_zmtp

WANTED = keys("a", 4)
Peers = Callable[..., RawPeer]


@pytest.fixture
def source(start: Callable[..., Plane]) -> Plane:
    plane = start("source")
    plane.wait_ready()
    plane.store(WANTED)
    return plane


def ask(
    plane: Plane, number: int, wanted: list[bytes] = WANTED, **fields: int | str | bytes
) -> Ask:
    groups = (KeyGroup(b"".join(wanted), 16, 0),)
    made = Ask(plane.instance, number, groups, 100, 5000, CONTENT)
    return msgspec.structs.replace(made, **fields)


class Evil:
    """What `pickle.loads` would run."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("kill -9 $PPID",)


def test_malformed_messages_are_counted_and_the_next_one_is_served(
    source: Plane, raw_peer: Peers
) -> None:
    noise = random.Random(7)
    good = encode(ask(source, 1))
    hello = encode(Hello("x", "x", "x:1", COMPATIBILITY, CONTENT))
    bodies = [
        b"",
        b"\xc1",
        good[:-1],
        good + b"\x00",
        hello[: len(hello) // 2],
        pickle.dumps(Evil()),
        pickle.dumps({"ask": 1}, protocol=0),
        msgspec.msgpack.encode(["ask"]),
        msgspec.msgpack.encode(["hello", "x", "x", "x:1", {}, 0]),
        msgspec.msgpack.encode(["unknown", 1, 2, 3]),
        msgspec.msgpack.encode({"tag": "ask"}),
        msgspec.msgpack.encode(["ping", source.instance, -1]),
        msgspec.msgpack.encode(["ping", "x" * 300, 1]),
        msgspec.msgpack.encode(["ping", source.instance, 1, "more"]),
        b"\x91" * 100_000,
        encode(ask(source, 1, [b"short"])),
        encode(ask(source, 1, [bytes(KEY_SIZE)] * (MAX_KEYS + 1))),
        *(noise.randbytes(noise.randrange(1, 400)) for _ in range(200)),
        *(mutated(good, noise) for _ in range(200)),
    ]
    frames = [[PROTOCOL, body] for body in bodies]
    frames += [[], [PROTOCOL], [b"", b""], [PROTOCOL, good, good], [b"x" * 1000, good]]
    frames += [[b"mpkv/"], [noise.randbytes(20), noise.randbytes(20)]]
    peer = raw_peer(source.address)
    for some in frames:
        peer.send_frames(some or [b""])
    peer.send(Ping(source.instance, 77))
    answers = [peer.receive()]
    while not isinstance(answers[-1], Denied) or answers[-1].ask:
        answers.append(peer.receive())
    assert source.process.poll() is None
    # Mutations may by luck be messages still; the rest is counted.
    assert source.count("dropped_malformed") > 200
    assert source.count("dropped_by_fault") == 0
    assert isinstance(raw_peer(source.address, "good").hello("10.0.0.2:1"), Welcome)


def mutated(message: bytes, noise: random.Random) -> bytes:
    changed = bytearray(message)
    for _ in range(noise.randrange(1, 4)):
        changed[noise.randrange(len(changed))] = noise.randrange(256)
    return bytes(changed)


def test_an_oversized_message_costs_its_sender_the_connection(
    source: Plane, raw_peer: Peers
) -> None:
    resident = source.resident_bytes()
    bully = raw_peer(source.address)
    for _ in range(20):
        bully.send_frames([PROTOCOL, bytes(max_message(KEY_SIZE) + 1)])
    good = raw_peer(source.address, "good")
    assert isinstance(good.hello("10.0.0.2:1"), Welcome)
    assert isinstance(good.ask(ask(source, 1)), Grant)
    assert source.resident_bytes() - resident < 64 << 20


def test_order_and_repetition(source: Plane, raw_peer: Peers) -> None:
    peer = raw_peer(source.address)
    # Before any Hello.
    early = peer.ask(ask(source, 1))
    assert isinstance(early, Denied)
    assert (early.reason, early.ask) == (Denial.UNKNOWN_SESSION, 1)
    assert isinstance(peer.hello(), Welcome)
    assert isinstance(peer.hello(), Welcome)
    # For another life of the source.
    stale = peer.ask(ask(source, 2, to="an earlier life"))
    assert isinstance(stale, Denied)
    assert (stale.reason, stale.instance) == (Denial.UNKNOWN_SESSION, source.instance)
    assert isinstance(peer.ask(Ping(source.instance, 9)), Pong)
    # Of another content.
    other = peer.ask(ask(source, 3, content=bytes(16)))
    assert isinstance(other, Denied)
    assert other.reason is Denial.CONTENT
    grant = peer.ask(ask(source, 4))
    assert isinstance(grant, Grant)
    assert u32(grant.blocks) == [source.ledger.find(key) for key in WANTED]
    assert u32(grant.runs) == [0, 4]
    # The same ask again pins nothing more and is not answered.
    peer.send(ask(source, 4))
    wrong = peer.ask(Confirm(source.instance, 4, grant.lease + 1, CONTENT))
    assert wrong == NotConfirmed(4, grant.lease + 1, Loss.UNKNOWN)
    assert source.pins() == 4
    assert source.count("dropped_duplicate") == 1
    confirm = Confirm(source.instance, 4, grant.lease, CONTENT)
    assert peer.ask(confirm) == Confirmed(4, grant.lease)
    assert peer.ask(confirm) == NotConfirmed(4, grant.lease, Loss.UNKNOWN)
    peer.send(Release(source.instance, 4))
    assert peer.ask(Ping(source.instance, 10)) == Pong(source.instance, 10)
    assert source.pins() == 0


def test_a_peer_cannot_end_the_lease_of_another(source: Plane, raw_peer: Peers) -> None:
    owner, thief = raw_peer(source.address, "owner"), raw_peer(source.address, "thief")
    assert isinstance(owner.hello("10.0.0.1:1"), Welcome)
    assert isinstance(thief.hello("10.0.0.2:1"), Welcome)
    grant = owner.ask(ask(source, 1))
    assert isinstance(grant, Grant)
    thief.send(Release(source.instance, 1))
    stolen = thief.ask(Confirm(source.instance, 1, grant.lease, CONTENT))
    assert isinstance(stolen, NotConfirmed)
    assert source.pins() == 4
    assert isinstance(owner.ask(Confirm(source.instance, 1, grant.lease, CONTENT)), Confirmed)


def test_a_claimed_address_does_not_end_whose_it_is(source: Plane, raw_peer: Peers) -> None:
    owner, other = raw_peer(source.address, "owner"), raw_peer(source.address, "other")
    assert isinstance(owner.hello("10.0.0.1:1"), Welcome)
    grant = owner.ask(ask(source, 1))
    assert isinstance(grant, Grant)
    foreign = msgspec.structs.replace(COMPATIBILITY, model="another")
    for compatibility, instance in ((foreign, "other"), (foreign, "owner"), (COMPATIBILITY, "x")):
        assert isinstance(
            other.ask(Hello(instance, "raw", "10.0.0.1:1", compatibility, CONTENT)),
            Refuse | Welcome,
        )
        assert source.pins() == 4
    wait_for(lambda: "both say that they are reached at 10.0.0.1:1" in source.log(), "the clash")
    # A ping of ours may have been on its way; the owner's lease is untouched.
    owner.send(Confirm(source.instance, 1, grant.lease, CONTENT))
    answer = owner.receive()
    while isinstance(answer, Pong):
        answer = owner.receive()
    assert answer == Confirmed(1, grant.lease)


def test_a_peer_that_is_silent_for_long_gives_its_address_up(
    source: Plane, raw_peer: Peers
) -> None:
    owner, successor = raw_peer(source.address, "owner"), raw_peer(source.address, "successor")
    assert isinstance(owner.hello("10.0.0.1:1"), Welcome)
    assert isinstance(owner.ask(ask(source, 1)), Grant)
    owner.close()

    def taken_over() -> bool:
        assert isinstance(successor.hello("10.0.0.1:1"), Welcome)
        return source.pins() == 0

    wait_for(taken_over, "the address", 2.0)


def test_what_a_peer_can_pin_is_bounded_in_amount_and_time(source: Plane, raw_peer: Peers) -> None:
    many = keys("many", 200)
    source.store(many)
    peers = [raw_peer(source.address, f"greedy-{number}") for number in range(4)]
    for number, peer in enumerate(peers):
        assert isinstance(peer.hello(f"10.0.0.{number}:1"), Welcome)
        for wanted in range(5):
            answer = peer.ask(ask(source, wanted, many, limit=10**9, lease_ms=1500))
            assert isinstance(answer, Grant | Denied)
    # An eighth stays for stores.
    assert source.pins() == source.ledger.blocks * 7 // 8
    # Nobody confirms; the clock alone frees everything.
    wait_for(lambda: source.pins() == 0, "the leases to end")
    assert source.count("leases_expired") > 0
    late = peers[0].ask(Confirm(source.instance, 0, 1, CONTENT))
    assert late == NotConfirmed(0, 1, Loss.EXPIRED)


def test_a_flood_does_not_starve_another_peer(
    source: Plane, start: Callable[..., Plane], raw_peer: Peers
) -> None:
    destination = start("destination")
    destination.wait_ready()
    many = keys("many", 100)
    source.store(many)
    flood = raw_peer(source.address)
    assert isinstance(flood.hello(), Welcome)
    sent = 0
    resident = source.resident_bytes()
    for _ in range(5):
        # As much as the sockets take: asks of many keys whose answers are never read.
        while sent < 20_000:
            try:
                body = encode(ask(source, sent, many * 100))
                flood.socket.send_multipart([PROTOCOL, body], zmq.NOBLOCK)
                sent += 1
            except zmq.Again:
                break
        assert destination.fetch(source.address, WANTED) == [0, 1, 2, 3]
    assert sent > 100
    assert destination.count("peers_lost") == 0
    assert source.resident_bytes() - resident < 256 << 20


def test_an_endless_message_is_bounded(source: Plane, raw_peer: Peers) -> None:
    with open_zmtp(source.port) as endless, pytest.raises(ConnectionError):
        send_frames_without_end(endless)
    good = raw_peer(source.address, "good")
    assert isinstance(good.hello("10.0.0.2:1"), Welcome)
    assert isinstance(good.ask(ask(source, 1)), Grant)
    assert source.resident_bytes() < 1 << 29


def test_more_long_messages_than_there_is_memory_for_cost_connections_only(
    source: Plane, start: Callable[..., Plane]
) -> None:
    destination = start("destination", deadline_s=5.0)
    destination.wait_ready()
    assert destination.fetch(source.address, WANTED) == [0, 1, 2, 3]
    with contextlib.ExitStack() as stack:
        floods = [stack.enter_context(open_zmtp(source.port)) for _ in range(40)]
        piece = b"\x03" + struct.pack(">Q", 1 << 20) + bytes(1 << 20)
        # Each message is never finished, so that nothing of it can be taken.
        with pytest.raises(ConnectionError):
            send_in_turn(floods, piece)
    wait_for(lambda: source.count("floods_cut") > 0, "the cut")
    wait_for(lambda: destination.fetch(source.address, WANTED) == [0, 1, 2, 3], "the peer again")
    assert source.process.poll() is None
    wait_for(lambda: source.resident_bytes() < 1 << 28, "the memory to be given back")


def send_in_turn(connections: list[socket.socket], piece: bytes) -> None:
    for connection in itertools.islice(itertools.cycle(connections), 4096):
        connection.sendall(piece)


def send_frames_without_end(connection: socket.socket) -> None:
    more_follows = b"\x03" + struct.pack(">Q", 1 << 20) + bytes(1 << 20)
    for _ in range(2048):
        connection.sendall(more_follows)


# --- a hostile source ------------------------------------------------------------------


def test_answers_that_were_not_asked_for_change_nothing(
    start: Callable[..., Plane], raw_source: Callable[..., RawSource]
) -> None:
    plane, raw = start("plane"), raw_source()
    plane.wait_ready()
    pull = plane.pull(raw.address, WANTED)
    route, _ = raw.receive(Hello)
    hello_too_late = Welcome("s", "raw", "s.target", b"md", 0, 64, BLOCK_BYTES, CONTENT)
    raw.send(route, Confirmed(1, 1))
    raw.send(route, Grant(1, 1, pack_runs([(0, 4)]), bytes(16), CONTENT))
    raw.send(route, hello_too_late)
    raw.send(route, hello_too_late)
    _, asked = raw.receive(Ask)
    assert isinstance(asked, Ask)
    number = asked.ask
    for frames in ([b""], [PROTOCOL], [PROTOCOL, b"\xc1"], [b"junk", b"junk"]):
        raw.socket.send_multipart([route, *frames])
    raw.send(route, Confirmed(number, 1))
    raw.send(route, Grant(number + 1, 1, pack_runs([(0, 4)]), bytes(16), CONTENT))
    raw.send(route, Denied("s", number + 1, Denial.QUOTA, ""))
    raw.send(route, Grant(number, 3, pack_runs([(0, 2)]), bytes(8), CONTENT))
    raw.send(route, Grant(number, 4, pack_runs([(0, 4)]), bytes(16), CONTENT))
    plane.wait_read()
    _, confirm = raw.receive(Confirm)
    assert isinstance(confirm, Confirm)
    assert (confirm.ask, confirm.lease) == (number, 3)
    raw.send(route, Confirmed(number, 99))
    raw.send(route, Confirmed(number, 3))
    raw.send(route, Confirmed(number, 3))
    answer = plane.answer(pull)
    assert isinstance(answer, Pulled)
    assert u32(answer.indexes) == [0, 1]
    wait_for(lambda: plane.count("dropped_stale") >= 8, "the strays to be counted")
    assert plane.answers(pull) == [answer]
    assert plane.process.poll() is None


@pytest.mark.parametrize(
    ("runs", "blocks"),
    [
        ([(0, 5)], 5),
        ([(0, 2), (1, 2)], 4),
        ([(2, 1), (0, 1)], 2),
        ([(0, 2)], 3),
        ([(0, 0)], 1),
        ([(2**32 - 1, 4)], 4),
        ([], 2),
    ],
)
def test_impossible_grants_are_misses(
    start: Callable[..., Plane],
    raw_source: Callable[..., RawSource],
    runs: list[tuple[int, int]],
    blocks: int,
) -> None:
    plane, raw = start("plane"), raw_source()
    plane.wait_ready()
    pull = plane.pull(raw.address, WANTED)
    route, _ = raw.receive(Hello)
    raw.send(route, Welcome("s", "raw", "s.target", b"md", 0, 64, BLOCK_BYTES, CONTENT))
    _, asked = raw.receive(Ask)
    assert isinstance(asked, Ask)
    raw.send(route, Grant(asked.ask, 1, pack_runs(runs), bytes(4 * blocks), CONTENT))
    # What it claims to have pinned is given back.
    _, release = raw.receive(Release)
    assert release == Release("s", asked.ask)
    answer = plane.answer(pull)
    assert isinstance(answer, PullFailed)
    assert answer.reason is MissReason.TRANSFER_FAILED
    assert raw.address in answer.detail
