"""Peers that end, or are cut off, while a source holds blocks for them: real processes."""

import contextlib
import signal
import time
from collections.abc import Callable

from mpkv.control.network.wire import Ask, Grant, Ping
from mpkv.control.source.presence import GRACE_S, SILENCE_S
from mpkv.messages import KeyGroup, MissReason, Pulled, PullFailed
from tests.control.common import CONTENT, keys, wait_for
from tests.control.harness import Plane
from tests.control.raw import Proxy, RawPeer

Start = Callable[..., Plane]
BLOCKS = 256
# Far beyond every limit here: what ends a lease sooner is not its time.
DEADLINE_S = 50.0


def holding(start: Start, source: Plane, node: str, wanted: list[bytes], peer: str = "") -> Plane:
    """A destination in the middle of a READ."""
    plane = start(node)
    plane.wait_ready()
    plane.manual()
    plane.pull(peer or source.address, wanted, deadline_s=DEADLINE_S)
    plane.wait_read()
    return plane


def test_killed_destinations_hold_nothing_a_second_later(start: Start) -> None:
    source, other = start("source", blocks=BLOCKS), start("other")
    source.wait_ready()
    other.wait_ready()
    shares = [keys(f"share {n}", 40) for n in range(4)]
    for share in shares:
        source.store(share)
    dying = [holding(start, source, f"d{n}", share) for n, share in enumerate(shares[:3])]
    assert source.pins() == 120
    for plane in dying:
        plane.kill()
    # Slack for a busy machine; the leases would last fifty.
    wait_for(lambda: source.pins() == 0, "the pins of the dead", GRACE_S + 1.0)
    assert source.count("leases_dropped") == 3
    assert source.log().count("is gone in the middle of 1 pulls") == 3
    for share in shares:
        assert other.fetch(source.address, share) == list(range(40))
    # Whatever still comes of the dead READs, the blocks are the source's own again.
    freed = keys("rewritten", BLOCKS)
    source.store(freed)
    assert other.fetch(source.address, freed[:60]) == list(range(60))


def test_a_cut_connection_keeps_its_leases(start: Start) -> None:
    source = start("source")
    source.wait_ready()
    wanted = keys("a", 4)
    source.store(wanted)
    with contextlib.closing(Proxy(source.port)) as proxy:
        destination = holding(start, source, "destination", wanted, proxy.address)
        proxy.cut()
        until = time.monotonic() + GRACE_S + 0.5
        while time.monotonic() < until:
            assert source.pins() == 4
            time.sleep(0.01)
        destination.finish_reads()
        assert isinstance(destination.answer(1), Pulled)
    assert source.count("leases_dropped") == 0


def test_a_destination_that_falls_silent_holds_nothing_for_long(start: Start) -> None:
    source = start("source")
    source.wait_ready()
    wanted = keys("a", 4)
    source.store(wanted)
    destination = holding(start, source, "destination", wanted)
    # As one whose host is gone: its connection does not end.
    destination.signal(signal.SIGSTOP)
    wait_for(lambda: source.pins() == 0, "the pins of the silent", SILENCE_S + 2.0)
    destination.signal(signal.SIGCONT)
    destination.finish_reads()
    answer = destination.answer(1)
    assert isinstance(answer, PullFailed)
    assert answer.reason in (MissReason.LEASE_LOST, MissReason.PEER_DOWN)
    # It finds its way back by itself.
    destination.automatic()
    wait_for(lambda: destination.fetch(source.address, wanted) == [0, 1, 2, 3], "the peer again")


def test_a_source_that_was_stopped_itself_drops_nobody(start: Start) -> None:
    source = start("source")
    source.wait_ready()
    wanted = keys("a", 4)
    source.store(wanted)
    peer = holding(start, source, "destination", wanted)
    source.signal(signal.SIGSTOP)
    time.sleep(SILENCE_S / 2)
    peer.signal(signal.SIGSTOP)
    time.sleep(SILENCE_S / 2 + 0.5)
    source.signal(signal.SIGCONT)
    peer.signal(signal.SIGCONT)
    time.sleep(GRACE_S)
    assert source.count("leases_dropped") == 0


def test_idle_peers_cost_nothing_when_others_end(
    start: Start, raw_peer: Callable[..., RawPeer]
) -> None:
    """Only those that hold something are looked at, however many connections end."""
    idle = 60
    source = start("source")
    source.wait_ready()
    source.store(keys("a", 4))
    peers = [raw_peer(source.address, f"idle {n}") for n in range(idle)]
    for number, peer in enumerate(peers):
        peer.hello(f"127.0.0.1:{number + 1}")
    holder = raw_peer(source.address, "holder")
    holder.hello("127.0.0.1:100")
    assert isinstance(
        holder.ask(
            Ask(source.instance, 1, (KeyGroup(keys("a", 1)[0], 16, 0),), 1, 60_000, CONTENT)
        ),
        Grant,
    )
    for number in range(5):
        ending = RawPeer(source.address, f"ending {number}")
        ending.hello(f"127.0.0.1:{200 + number}")
        ending.close()
        time.sleep(0.2)
    for peer in [*peers, holder]:
        peer.send(Ping(source.instance, 1))
    assert [type(peer.receive()).__name__ for peer in peers] == ["Pong"] * idle
    # What tells an open connection from one that has ended.
    numbers = []
    while holder.socket.poll(200):
        numbers.append(getattr(holder.receive(), "number", None))
    assert 0 in numbers
    assert all(not peer.socket.poll(0) for peer in peers)
    assert source.pins() == 1
