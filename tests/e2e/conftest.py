"""One pair of engines for all end-to-end tests, and what an engine without mpkv says."""

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from mpkv_cli.tiny_model import make_tiny_model
from tests.e2e.servers import Fleet, Server
from tests.soak.prompts import CLEAR, Prompt, draw_prompts
from tests.support.leftovers import Leftovers

BLOCK = 128
SOAK_SEED, SOAK_PROMPTS = 20, 12


def prompt(name: str, tokens: int) -> list[int]:
    """A prompt of byte tokens that depends on nothing but `name`."""
    return random.Random(name).choices(range(32, 127), k=tokens)


# Every prompt whose answer is compared, by name. Lengths are no multiple of a block, so
# that a tail is always computed.
PROMPTS = {
    "whole": prompt("whole", 32 * BLOCK + 17),
    "base": prompt("base", 16 * BLOCK + 1),
    "half": prompt("base", 16 * BLOCK) + prompt("half", 16 * BLOCK + 5),
    "unknown": prompt("unknown", 8 * BLOCK + 3),
    **{f"busy{i}": prompt(f"busy{i}", 16 * BLOCK + 9) for i in range(3)},
    **{f"early{i}": prompt(f"early{i}", 16 * BLOCK + 5) for i in range(3)},
    **{
        name: prompt(name, 8 * BLOCK + 7)
        for name in (
            *("reset", "weights", "silent", "after silent"),
            *("helpers", "after helpers", "killed", "restarted"),
        )
    },
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    before = Leftovers.now()
    folder = tmp_path_factory.mktemp("e2e")
    make_tiny_model(folder / "tiny")
    # So few on b that its requests preempt each other.
    fleet = Fleet(folder, folder / "tiny", gpu_blocks={"b": 42}, tier="128MiB")
    try:
        yield fleet
    finally:
        fleet.stop()
    assert all(not server.processes() for server in fleet.servers)
    assert before.new() == []


@dataclass(frozen=True)
class Reference:
    """What an engine without a connector answers: to PROMPTS by name, to those of a soak."""

    answers: dict[str, list[int]]
    soak: list[Prompt]


@pytest.fixture(scope="module")
def reference(fleet: Fleet) -> Reference:
    server = fleet.serve_without_mpkv(fleet.b)
    server.wait_healthy()
    answers = {name: server.complete(tokens) for name, tokens in PROMPTS.items()}
    soak = draw_prompts(server, SOAK_SEED, SOAK_PROMPTS)
    server.stop()
    # Of a name with unclear answers others may say something else, and be right.
    assert [name for name, answer in answers.items() if answer.clearance < CLEAR] == []
    tokens = {name: answer.tokens for name, answer in answers.items()}
    assert len({tuple(answer) for answer in tokens.values()}) > len(tokens) // 2
    return Reference(tokens, soak)


@pytest.fixture(scope="module")
def expected(reference: Reference) -> dict[str, list[int]]:
    return reference.answers


@pytest.fixture(scope="module")
def pair(fleet: Fleet, reference: Reference) -> tuple[Server, Server]:
    servers = (fleet.launch(fleet.a), fleet.launch(fleet.b))
    for server in servers:
        server.wait_healthy()
    return servers


class LongPrefills:
    """Keeps a server computing long prompts until left."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(2)]

    def __enter__(self) -> "LongPrefills":
        for thread in self._threads:
            thread.start()
        until = time.monotonic() + 60
        while self._server.metric("vllm:num_requests_running") < 1:
            assert time.monotonic() < until, "the server never became busy"
            time.sleep(0.05)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=180)
            assert not thread.is_alive()

    def _run(self, index: int) -> None:
        turn = 0
        while not self._stop.is_set():
            turn += 1
            tokens = prompt(f"long {index} {turn}", 40 * BLOCK)
            self._server.complete(tokens, max_tokens=1, timeout_s=180)
