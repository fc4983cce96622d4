"""Peers that are silent, die, come back, or are cut off, as real processes."""

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mpkv.control.network.gate import Gate
from mpkv.control.network.wire import (
    Ask,
    Confirm,
    Grant,
    Hello,
    Loss,
    NotConfirmed,
    Ping,
    Welcome,
    pack_runs,
)
from mpkv.messages import MissReason, Pulled, PullFailed
from tests.control.common import BLOCK_BYTES, CONTENT, keys, wait_for
from tests.control.harness import Plane
from tests.control.raw import Proxy, RawSource, closing

Start = Callable[..., Plane]
Pair = tuple[Plane, Plane]
WANTED = keys("a", 4)
ALL = [0, 1, 2, 3]


def failure(plane: Plane, pull: int, limit_s: float = 20.0) -> PullFailed:
    answer = plane.answer(pull, limit_s)
    assert isinstance(answer, PullFailed)
    return answer


def welcome(instance: str) -> Welcome:
    return Welcome(instance, "raw", f"{instance}.target", b"md", 0, 64, BLOCK_BYTES, CONTENT)


# --- silent ------------------------------------------------------------------------------


def test_a_port_that_accepts_and_says_nothing(start: Start) -> None:
    destination = start("destination")
    destination.wait_ready()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        hurried = destination.pull(address, WANTED, deadline_s=0.5)
        patient = destination.pull(address, WANTED, deadline_s=30.0)
        assert failure(destination, hurried, 3.0).reason is MissReason.TIMED_OUT
        # The handshake has a deadline of its own.
        gone = failure(destination, patient, 8.0)
        assert gone.reason is MissReason.PEER_DOWN
        assert address in gone.detail
        # While it backs off, nobody waits at all.
        again = failure(destination, destination.pull(address, WANTED), 1.0)
        assert again.reason is MissReason.PEER_DOWN


def test_a_port_where_nothing_listens_is_a_miss_at_once(start: Start) -> None:
    destination = start("destination", deadline_s=60.0)
    destination.wait_ready()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    answer = failure(destination, destination.pull(address, WANTED), 2.0)
    assert answer.reason is MissReason.PEER_DOWN
    assert address in answer.detail


def test_a_source_that_stops_after_the_handshake(pair: Pair) -> None:
    source, destination = pair
    source.store(WANTED)
    assert destination.fetch(source.address, WANTED) == ALL
    source.signal(signal.SIGSTOP)
    hurried = destination.pull(source.address, WANTED, deadline_s=0.5)
    patient = destination.pull(source.address, WANTED, deadline_s=30.0)
    assert failure(destination, hurried).reason is MissReason.TIMED_OUT
    assert failure(destination, patient, 8.0).reason is MissReason.PEER_DOWN
    assert "lost a peer" in destination.log()
    source.signal(signal.SIGCONT)
    # The grants it now sends are for pulls that are over.
    wait_for(lambda: destination.fetch(source.address, WANTED) == ALL, "the source again")
    # And it is told to let go of what it has pinned for them.
    wait_for(lambda: source.pins() == 0, "the pins of the abandoned pulls", 4.0)
    assert len(destination.answers(hurried)) == len(destination.answers(patient)) == 1


def test_a_source_that_stops_after_the_grant(pair: Pair) -> None:
    source, destination = pair
    destination.manual()
    source.store(WANTED)
    pull = destination.pull(source.address, WANTED, deadline_s=1.0)
    read = destination.wait_read()
    source.signal(signal.SIGSTOP)
    destination.finish(read)
    answer = failure(destination, pull)
    assert answer.reason is MissReason.LEASE_LOST
    assert not answer.slots_held
    source.signal(signal.SIGCONT)
    # It confirms now, and it is too late.
    wait_for(lambda: source.count("leases_confirmed") == 1, "the late confirmation")
    wait_for(lambda: destination.count("dropped_stale") == 1, "it to be dropped")
    assert destination.answers(pull) == [answer]


def test_a_source_that_never_confirms(start: Start, raw_source: Callable[[], RawSource]) -> None:
    destination, source = start("destination"), raw_source()
    destination.wait_ready()
    pulls = [destination.pull(source.address, WANTED, deadline_s=1.0) for _ in range(2)]
    route, _ = source.receive(Hello)
    source.send(route, welcome("s"))
    for lease in (5, 6):
        _, ask = source.receive(Ask)
        assert isinstance(ask, Ask)
        blocks = bytes(16)
        source.send(route, Grant(ask.ask, lease, pack_runs([(0, 4)]), blocks, CONTENT))
        destination.wait_read(lease - 4)
    _, confirm = source.receive(Confirm)
    assert isinstance(confirm, Confirm)
    assert confirm.lease == 5
    source.send(route, NotConfirmed(confirm.ask, 5, Loss.EXPIRED))
    refused, silent = (failure(destination, pull) for pull in pulls)
    assert (refused.reason, silent.reason) == (MissReason.LEASE_LOST, MissReason.LEASE_LOST)
    assert "expired" in refused.detail


# --- dying -------------------------------------------------------------------------------


def test_a_peer_that_dies_between_hello_and_welcome(start: Start) -> None:
    destination = start("destination", deadline_s=60.0)
    destination.wait_ready()
    with closing(RawSource()) as source:
        pull = destination.pull(source.address, WANTED)
        source.receive(Hello)
    answer = failure(destination, pull, 6.0)
    assert answer.reason is MissReason.PEER_DOWN
    assert source.address in answer.detail


def test_a_peer_that_dies_between_grant_and_read(pair: Pair) -> None:
    source, destination = pair
    initiator = destination.manual()
    # The registration never ends, so the READ is never posted.
    initiator.adds = False
    source.store(WANTED)
    pull = destination.pull(source.address, WANTED)
    wait_for(lambda: source.pins() == 4, "the grant")
    source.kill()
    answer = failure(destination, pull, 8.0)
    assert answer.reason is MissReason.PEER_DOWN
    assert not answer.slots_held
    wait_for(lambda: destination.removed() == [source.instance], "the peer to be removed")


def test_a_peer_that_dies_in_the_read(pair: Pair) -> None:
    source, destination = pair
    destination.manual()
    source.store(WANTED)
    pull = destination.pull(source.address, WANTED)
    read = destination.wait_read()
    source.kill()
    answer = failure(destination, pull, 8.0)
    assert answer.reason is MissReason.PEER_DOWN
    assert answer.slots_held
    # A copy inside one host goes on after its source is dead, and ends with success.
    destination.finish(read)
    destination.wait_slots(pull)
    assert destination.answers(pull) == [answer]


def test_a_peer_that_restarts_on_the_same_port(pair: Pair, start: Start) -> None:
    source, destination = pair
    initiator = destination.manual()
    initiator.automatic = True
    source.store(WANTED)
    assert destination.fetch(source.address, WANTED) == ALL
    source.kill()
    successor = start("source", port=source.port)
    successor.wait_ready()
    successor.store(WANTED[:2])
    wait_for(lambda: destination.fetch(source.address, WANTED) == [0, 1], "the new life")
    assert initiator.removed == [source.instance]
    assert list(initiator.peers) == [successor.instance]
    assert initiator.reads[-1].instance == successor.instance


def test_a_restarted_destination_gives_back_what_its_earlier_life_held(
    pair: Pair, start: Start
) -> None:
    source, destination = pair
    destination.manual()
    source.store(WANTED)
    destination.pull(source.address, WANTED)
    destination.wait_read()
    wait_for(lambda: source.pins() == 4, "the grant")
    destination.kill()
    successor = start("destination", port=destination.port)
    successor.wait_ready()
    assert successor.fetch(source.address, WANTED) == ALL
    # Long before the lease would have ended.
    assert source.pins() == 0


@pytest.mark.parametrize(("during", "times"), [("lookup", 80), ("READ", 10)])
def test_cut_connections_are_one_session(pair: Pair, during: str, times: int) -> None:
    source, destination = pair
    initiator = destination.manual()
    source.store(WANTED)
    pulled = 0
    with contextlib.closing(Proxy(source.port)) as proxy:
        for _ in range(times):
            pull = destination.pull(proxy.address, WANTED, deadline_s=2.0)
            if during == "READ":
                destination.wait_read_or_end(pull)
            proxy.cut()
            destination.finish_reads_until_end(pull)
            if isinstance(destination.answer(pull), Pulled):
                pulled += 1
        destination.automatic()
        wait_for(lambda: destination.fetch(proxy.address, WANTED) == ALL, "the peer again")
    # A cut connection alone does not end a pull: the same instance answers on the next.
    assert pulled > times // 10
    assert list(initiator.peers) == [source.instance]
    assert len(initiator.added_instances) == len(initiator.removed) + 1
    assert destination.process.poll() is None
    wait_for(lambda: source.pins() == 0, "the pins of lost pulls", 15.0)


# --- by several names --------------------------------------------------------------------


def by_name(plane: Plane) -> str:
    return f"localhost:{plane.port}"


def test_one_peer_under_two_names_serves_both_at_once(pair: Pair) -> None:
    source, destination = pair
    source.store(WANTED)
    for _ in range(20):
        pulls = [destination.pull(name, WANTED) for name in (source.address, by_name(source)) * 2]
        assert all(isinstance(destination.answer(pull), Pulled) for pull in pulls)
    assert source.count("hellos") == 2
    assert source.count("dropped_unknown_session") == 0
    assert destination.warmed() == [source.instance]
    assert destination.removed() == []


def test_a_name_that_is_lost_does_not_take_the_other_with_it(pair: Pair) -> None:
    source, destination = pair
    source.store(WANTED)
    with contextlib.closing(Proxy(source.port)) as proxy:
        assert destination.fetch(proxy.address, WANTED) == ALL
        assert destination.fetch(source.address, WANTED) == ALL
    wait_for(lambda: "lost a peer" in destination.log(), "the loss of one name", 8.0)
    assert destination.removed() == []
    assert destination.fetch(source.address, WANTED) == ALL
    # When the last is lost, so is the registration; and it comes back.
    source.kill()
    wait_for(lambda: destination.removed() == [source.instance], "the other loss", 8.0)


def test_a_named_peer_that_is_not_there_is_a_miss_at_once(start: Start) -> None:
    destination = start("destination", deadline_s=60.0)
    destination.wait_ready()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    answer = failure(destination, destination.pull(f"localhost:{port}", WANTED), 2.0)
    assert answer.reason is MissReason.PEER_DOWN
    assert "nothing answers" in answer.detail


def test_a_peer_that_comes_back_at_another_address(start: Start, tmp_path: Path) -> None:
    """Its name leads there in a private /etc/hosts, which the resolver reads each time."""
    hosts, script = tmp_path / "hosts", 'mount --bind "$0" /etc/hosts && exec "$@"'
    hosts.write_text("127.0.0.11 peer.example\n")
    before = ("unshare", "--mount", "sh", "-c", script, str(hosts))
    if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a private /etc/hosts needs root")
    source = start("source", listen="127.0.0.11")
    destination = start("destination", peers=(f"peer.example:{source.port}",), before=before)
    source.wait_ready()
    wait_for(lambda: destination.warmed() == [source.instance], "the peer by its name")
    source.kill()
    # Long enough for back-offs to have grown.
    time.sleep(2.0)
    successor = start("source", listen="127.0.0.12", port=source.port)
    successor.wait_ready()
    hosts.write_text("127.0.0.12 peer.example\n")
    wait_for(lambda: destination.warmed()[1:] == [successor.instance], "the peer elsewhere", 1.5)


def test_an_address_that_swallows_packets(start: Start) -> None:
    """Nothing there tells a connection that it fails."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gate = Gate(listener.fileno())
        gate._shut()
        port = listener.getsockname()[1]
        destination = start("destination", peers=(f"127.0.0.1:{port}",), deadline_s=60.0)
        destination.wait_ready()
        answer = failure(destination, destination.pull(f"127.0.0.1:{port}", WANTED), 2.0)
        assert "nothing answers" in answer.detail
        time.sleep(1.5)
        gate.close()
    source = start("source", port=port)
    wait_for(lambda: destination.warmed() == [source.instance], "the peer", 3.0)


def test_ipv6(start: Start) -> None:
    source, destination = start("source", listen="::1"), start("destination")
    source.wait_ready()
    destination.wait_ready()
    source.store(WANTED)
    assert destination.fetch(f"[::1]:{source.port}", WANTED) == ALL
    bare = failure(destination, destination.pull(f"::1:{source.port}", WANTED))
    assert bare.reason is MissReason.REFUSED
    assert "in brackets" in bare.detail
    source.kill()
    wait_for(lambda: "lost a peer" in destination.log(), "the loss", 8.0)


# --- staying -----------------------------------------------------------------------------


def test_a_quiet_session_is_still_a_hit(pair: Pair) -> None:
    source, destination = pair
    source.store(WANTED)
    assert destination.fetch(source.address, WANTED) == ALL
    before = source.count("hellos")
    # Longer than a silence that ends a session: only heartbeats travel.
    pings = source.count("pings")
    wait_for(lambda: source.count("pings") >= pings + 5, "heartbeats")
    assert destination.fetch(source.address, WANTED) == ALL
    assert source.count("hellos") == before
    assert destination.count("peers_lost") == 0


def test_configured_peers_are_connected_and_warmed_before_any_pull(start: Start) -> None:
    source = start("source")
    destination = start("destination", peers=(source.address,))
    wait_for(lambda: destination.warmed() == [source.instance], "the peer to be registered")
    source.store(WANTED)
    assert destination.fetch(source.address, WANTED) == ALL
    assert source.count("hellos") == 1


def test_a_configured_peer_comes_goes_and_comes_back_with_a_quiet_log(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    destination = start("destination", peers=(f"127.0.0.1:{port}",))
    destination.wait_ready()
    wait_for(lambda: "nothing answers at" in destination.log(), "its absence to be noticed")
    first = start("source", port=port)
    wait_for(lambda: destination.warmed() == [first.instance], "the peer", 10.0)
    first.kill()
    wait_for(lambda: "lost a peer" in destination.log(), "the loss", 8.0)
    second = start("source", port=port)
    wait_for(
        lambda: destination.warmed() == [first.instance, second.instance], "the peer again", 15.0
    )
    lines = [line for line in destination.log().splitlines() if str(port) in line]
    assert [line.split()[2] for line in lines] == ["INFO", "INFO", "WARNING", "INFO"]


def test_a_source_that_is_still_starting_is_asked_again(start: Start) -> None:
    source = start("source", target=False)
    source.wait_ready()
    destination = start("destination", peers=(source.address,))
    destination.wait_ready()
    early = failure(destination, destination.pull(source.address, WANTED))
    assert early.reason is MissReason.PEER_DOWN
    source.target_ready()
    source.store(WANTED)
    wait_for(lambda: destination.fetch(source.address, WANTED) == ALL, "the source", 10.0)


def test_a_registration_that_fails_is_a_miss_and_tried_again(pair: Pair) -> None:
    source, destination = pair
    assert destination.initiator is not None
    destination.initiator.fails = True
    source.store(WANTED)
    answer = failure(destination, destination.pull(source.address, WANTED))
    assert answer.reason is MissReason.TRANSFER_FAILED
    assert "NIXL_ERR_BACKEND" in answer.detail
    destination.initiator.fails = False
    wait_for(lambda: destination.fetch(source.address, WANTED) == ALL, "the registration")


def test_both_directions_at_once(pair: Pair) -> None:
    one, other = pair
    one.store(WANTED)
    other.store(keys("b", 3))
    pulls = [(one.pull(other.address, keys("b", 3))), (other.pull(one.address, WANTED))]
    assert isinstance(other.answer(pulls[1]), Pulled)
    assert isinstance(one.answer(pulls[0]), Pulled)


def test_pings_are_answered_only_in_a_session(
    start: Start, raw_source: Callable[[], RawSource]
) -> None:
    destination, source = start("destination"), raw_source()
    destination.wait_ready()
    pull = destination.pull(source.address, WANTED, deadline_s=30.0)
    route, _ = source.receive(Hello)
    source.send(route, welcome("s"))
    # Answers nothing: neither the ask nor the heartbeats.
    source.receive(Ping)
    answer = failure(destination, pull, 8.0)
    assert answer.reason is MissReason.PEER_DOWN
    assert "no answer" in answer.detail
