"""The process itself: its start, its port, its end."""

import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import msgspec
import pytest

from mpkv.messages import Bounds, CancelPull, InitiatorUp
from tests.control.common import ROOT, keys, wait_for
from tests.control.harness import Plane
from tests.control.raw import open_zmtp

Start = Callable[..., Plane]
WANTED = keys("a", 3)


def test_a_taken_port_is_one_error_and_the_process_goes_on(start: Start) -> None:
    other = start("other")
    other.wait_ready()
    other.store(WANTED)
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    plane = start("plane", port=port)
    wait_for(lambda: "cannot listen on" in plane.log(), "the error")
    wait_for(lambda: "the initiator" in plane.log(), "the initiator")
    # Meanwhile it pulls from others.
    assert plane.fetch(other.address, WANTED) == [0, 1, 2]
    taken.close()
    wait_for(lambda: "listening on" in plane.log(), "the port", 10.0)
    (error,) = [line for line in plane.log().splitlines() if " ERROR " in line]
    assert f"127.0.0.1:{port}" in error
    assert "Address already in use" in error
    assert "`port`" in error
    plane.store(WANTED)
    assert other.fetch(plane.address, WANTED) == [0, 1, 2]


def test_it_leaves_with_the_engine(start: Start) -> None:
    plane = start("plane")
    plane.wait_ready()
    plane.engine_process.end()
    assert plane.process.wait(2.0) == 0


def test_it_ignores_sigint_and_ends_on_sigterm(start: Start) -> None:
    source, plane = start("source"), start("plane")
    source.wait_ready()
    plane.wait_ready()
    source.store(WANTED)
    plane.signal(signal.SIGINT)
    assert plane.fetch(source.address, WANTED) == [0, 1, 2]
    plane.signal(signal.SIGTERM)
    plane.process.wait(2.0)


def test_it_imports_neither_torch_nor_vllm_nor_nixl_nor_numpy() -> None:
    code = (
        "import sys, mpkv.control.__main__\n"
        "print(sorted({m.split('.')[0] for m in sys.modules}"
        " & {'torch', 'vllm', 'nixl', 'numpy', 'asyncio'}))"
        "\nprint([m for m in sys.modules if m.startswith(('mpkv.engine', 'mpkv.registration'))])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert found.stdout.split() == ["[]", "[]"]


def test_idle_it_hardly_turns(start: Start) -> None:
    source = start("source")
    source.wait_ready()
    plane = start("plane", peers=(source.address,))
    wait_for(lambda: plane.warmed() == [source.instance], "the peer")
    before, pings = plane.context_switches(), source.count("pings")
    wait_for(lambda: source.count("pings") >= pings + 3, "three heartbeats")
    # Per heartbeat: a timer, a message each way, and libzmq's threads.
    assert plane.context_switches() - before < 100


def test_nothing_of_the_engine_is_taken_while_its_ring_is_full(start: Start) -> None:
    plane = start("plane", ring_bytes=4096)
    plane.wait_ready()
    # Every one of these fails at once; their answers fill the ring many times over.
    pulls = [plane.pull("no port here", WANTED[:1]) for _ in range(8)]
    for _ in range(30):
        pulls += [plane.pull("no port here", WANTED[:1]) for _ in range(3)]
        plane.push(CancelPull(0))
        for pull in pulls[-2:]:
            plane.answer(pull)
    for pull in pulls:
        plane.answer(pull)
    assert plane.ledger.counts()["landing"] == 0


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b"junk", 4),
        (msgspec.msgpack.encode(InitiatorUp(1)), 4),
        # What the kernel delivers when no descriptor is left.
        (msgspec.msgpack.encode(InitiatorUp(1)), 1),
    ],
)
def test_an_initiator_that_cannot_be_used_ends_it_so_that_it_is_replaced(
    start: Start, body: bytes, count: int
) -> None:
    plane = start("plane", initiator=False)
    plane.wait_ready()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    socket.send_fds(plane.supervisor, [body], [null] * count)
    os.close(null)
    assert plane.process.wait(5.0) == 1
    (error,) = [line for line in plane.log().splitlines() if " ERROR " in line]
    assert "cannot be used" in error


def test_a_flood_of_connections_leaves_descriptors_for_the_rest(start: Start) -> None:
    source, plane = start("source"), start("plane")
    source.wait_ready()
    plane.wait_ready()
    source.store(WANTED)
    resource.prlimit(plane.process.pid, resource.RLIMIT_NOFILE, (256, 256))
    with contextlib.ExitStack() as connections:
        for _ in range(300):
            if "no more are taken" in plane.log():
                break
            with contextlib.suppress(TimeoutError):
                connections.enter_context(open_zmtp(plane.port, 1.0))
        wait_for(lambda: "no more are taken" in plane.log(), "the gate to shut")
        late = connections.enter_context(socket.socket())
        late.settimeout(0.3)
        with pytest.raises(TimeoutError):
            late.connect(("127.0.0.1", plane.port))
        assert len(os.listdir(f"/proc/{plane.process.pid}/fd")) < 200
        # Neither a new initiator nor pulls suffer.
        plane.new_initiator()
        wait_for(lambda: "initiator2 is ready" in plane.log(), "the new initiator")
        assert plane.fetch(source.address, WANTED) == [0, 1, 2]
        # Nor does it turn for what it does not accept.
        before, pings = plane.cpu_seconds(), source.count("pings")
        wait_for(lambda: source.count("pings") >= pings + 2, "two heartbeats")
        assert plane.cpu_seconds() - before < 0.3
    plane.store(WANTED)
    wait_for(lambda: source.fetch(plane.address, WANTED) == [0, 1, 2], "the gate to open")


def test_a_ledger_of_another_tier_is_refused_with_one_error(start: Start) -> None:
    plane = start("plane", tier_blocks=7, initiator=False)
    assert plane.process.wait(5.0) == 1
    (error,) = plane.log().splitlines()
    assert " ERROR " in error
    assert "7" in error


def test_memory_that_stays_when_peers_are_dropped_ends_it_so_that_it_is_replaced(
    start: Start,
) -> None:
    plane = start("plane", bounds=Bounds(beat_s=0.05, control_memory=1 << 20))
    assert plane.process.wait(10.0) == 1
    assert plane.count("beats") == Bounds().looks
    (error,) = [line for line in plane.log().splitlines() if " ERROR " in line]
    found = re.search(r"it leaks: (\d+) KiB .* at most 1024 KiB for long", error)
    assert found
    assert int(found[1]) > 1024
