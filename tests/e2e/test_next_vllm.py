"""Engines of vLLM's next version pull as those of the installed one, and may load within a step."""

from collections.abc import Iterator

import pytest

from mpkv_cli.tiny_model import make_tiny_model
from tests.e2e.conftest import BLOCK, LongPrefills, prompt
from tests.e2e.servers import Answer, Fleet, Server
from tests.support.leftovers import Leftovers
from tests.support.next_vllm import NEXT_VLLM

# Of 512 KiB.
BUDGET_BLOCKS = 20


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    before = Leftovers.now()
    folder = tmp_path_factory.mktemp("next")
    make_tiny_model(folder / "tiny")
    budget = f"{BUDGET_BLOCKS * 512}KiB"
    fleet = Fleet(
        folder,
        folder / "tiny",
        gpu_blocks={},
        tier="256MiB",
        sync_load_budget=budget,
        vllm=NEXT_VLLM,
    )
    try:
        yield fleet
    finally:
        fleet.stop()
    assert all(not server.processes() for server in fleet.servers)
    assert before.new() == []


@pytest.fixture(scope="module")
def pair(fleet: Fleet) -> tuple[Server, Server]:
    servers = (fleet.launch(fleet.a), fleet.launch(fleet.b))
    for server in servers:
        server.wait_healthy()
        assert f"LLM engine (v{NEXT_VLLM.name.removeprefix('vllm-')}" in server.log()
    return servers


def pull(pair: tuple[Server, Server], tokens: list[int]) -> tuple[Answer, int]:
    """What b answers with the blocks of a, which must be what a does, and how many came."""
    a, b = pair
    expected = a.complete(tokens)
    before = b.metric("mpkv:pulled_blocks_total")
    answer = b.complete(tokens, source=a.plan)
    assert answer.tokens == expected.tokens
    return answer, int(b.metric("mpkv:pulled_blocks_total") - before)


def first_steps(fleet: Fleet, pair: tuple[Server, Server], blocks: int) -> list[int]:
    """How many tokens b computed in the very step whose scheduler took a pull of so many blocks
    and 17 tokens, for some pulls."""
    found = []
    for turn in range(4):
        _, pulled = pull(pair, prompt(f"{blocks} blocks {turn}", blocks * BLOCK + 17))
        assert pulled == blocks
        taken = fleet.events("b-engine", "pull_adopted")[-1]["at"]
        steps = fleet.events("b-engine", "step_scheduled")
        found.append(next(step["tokens"] for step in steps if step["at"] >= taken))
    return found


def test_a_pull_within_the_budget_is_used_in_the_step_that_takes_it(
    fleet: Fleet, pair: tuple[Server, Server]
) -> None:
    found = first_steps(fleet, pair, BUDGET_BLOCKS)
    # A pull that ends while a step is being scheduled is taken at its end, and used in the next.
    assert set(found) <= {17, 0}
    assert 17 in found


def test_a_pull_beyond_the_budget_is_loaded_between_steps(
    fleet: Fleet, pair: tuple[Server, Server]
) -> None:
    assert set(first_steps(fleet, pair, BUDGET_BLOCKS + 1)) == {0}


def test_pulls_beside_other_prefills(pair: tuple[Server, Server]) -> None:
    with LongPrefills(pair[1]):
        assert [pull(pair, prompt(f"beside {i}", 9 * BLOCK + 3))[1] for i in range(3)] == [9] * 3


def test_pulls_after_a_reset(pair: tuple[Server, Server]) -> None:
    tokens = prompt("reset", 6 * BLOCK + 1)
    assert pull(pair, tokens)[1] == 6
    for server in pair:
        assert server.reset_cache(running=True)
    assert pull(pair, tokens)[1] == 6
    # Nor does one that is reset alone share less, but for the moment in which it looks.
    assert pair[1].reset_cache(running=True)
    assert pull(pair, tokens)[1] == 6


def test_other_weights_are_not_shared(pair: tuple[Server, Server]) -> None:
    a, b = pair
    tokens = prompt("weights", 6 * BLOCK + 1)
    a.flip_weights()
    assert a.reset_cache(running=True)
    others = a.complete(tokens)
    before = b.metric("mpkv:pulled_blocks_total")
    assert b.complete(tokens, source=a.plan).tokens != others.tokens
    assert b.metric("mpkv:pulled_blocks_total") == before
    assert b.metric("mpkv:pull_misses_total", reason="content") == 1
    # b changes its own beside blocks of the old ones: not without a reset.
    b.flip_weights()
    assert b.complete(tokens, source=a.plan).tokens
    assert b.metric("mpkv:pulled_blocks_total") == before
    assert b.reset_cache(running=True)
    assert pull(pair, tokens)[1] == 6
