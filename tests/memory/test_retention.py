"""Which blocks a full tier gives up, as whoever uses the ledger sees it."""

import random
from collections.abc import Iterator

import pytest

from mpkv.memory import FILLING, LANDING, Ledger
from mpkv_cli.bench.tier import replay
from mpkv_cli.bench.tier_models import arc, lru, s3_fifo
from mpkv_cli.bench.tier_trace import Request, generate_trace
from tests.memory.blocks import KEY_SIZE, key

BLOCKS = 64


@pytest.fixture
def engine() -> Iterator[Ledger]:
    ledger = Ledger.create(BLOCKS, KEY_SIZE)
    yield ledger
    ledger.close()


def prompt(number: int, length: int = 8) -> list[bytes]:
    return [key(1000 * number + block) for block in range(length)]


def store(
    engine: Ledger, keys: list[bytes], owner: int = 0, *, copies: bool = False
) -> list[bytes] | None:
    """Store `keys` at once; the keys that had to go, None if there was no room."""
    state = LANDING if copies else FILLING
    allocated = engine.allocate(len(keys), state, owner)
    if allocated is None:
        return None
    assert not any(engine.publish(allocated[0], b"".join(keys), False, copies))
    gone = allocated[1]
    return [gone[at : at + KEY_SIZE] for at in range(0, len(gone), KEY_SIZE)]


def use(ledger: Ledger, keys: list[bytes]) -> None:
    """As a request does that loads them."""
    ledger.unpin_many(ledger.pin_many(b"".join(keys)))


def held(engine: Ledger, keys: list[bytes]) -> int:
    """How many leading ones are there."""
    return engine.lookup_prefix(b"".join(keys))


def fill(engine: Ledger, first: int = 0) -> list[list[bytes]]:
    prompts = [prompt(first + number) for number in range(BLOCKS // 8)]
    for keys in prompts:
        store(engine, keys)
    return prompts


def test_a_prompt_goes_from_its_end(engine: Ledger) -> None:
    prompts = fill(engine)
    for more in range(1, 8):
        store(engine, [key(10**6 + more)])
        # Where any of a prompt is left, its first blocks are.
        for keys in prompts:
            there = engine.contains_many(b"".join(keys))
            assert there == b"\x01" * held(engine, keys) + bytes(8 - held(engine, keys))


def test_prefixes_outlive_suffixes_that_were_stored_in_later_steps(engine: Ledger) -> None:
    keys = prompt(0, 32)
    for first in range(0, 32, 8):
        store(engine, keys[first : first + 8], owner=7)
    for other in range(1, 8):
        store(engine, prompt(other), owner=10 + other)
        there = engine.contains_many(b"".join(keys))
        assert there == b"\x01" * held(engine, keys) + bytes(32 - held(engine, keys))
    assert 0 < held(engine, keys) < 32


def test_a_prompts_own_stores_never_evict_its_earlier_blocks(engine: Ledger) -> None:
    fill(engine)
    keys = prompt(100, BLOCKS)
    for first in range(0, BLOCKS, 8):
        assert store(engine, keys[first : first + 8], owner=3) is not None
        assert held(engine, keys) == first + 8
    # There is nothing else left to give up.
    assert store(engine, prompt(200), owner=3) is None
    assert held(engine, keys) == BLOCKS
    assert store(engine, prompt(200), owner=4) is not None


@pytest.mark.parametrize("who", ["engine", "peers"])
def test_what_is_used_stays(engine: Ledger, who: str) -> None:
    prompts = fill(engine)
    control = Ledger.attach(engine.fd)
    try:
        for round in range(20):
            use(engine if who == "engine" else control, prompts[0])
            store(engine, prompt(100 + round))
        assert held(engine, prompts[0]) == 8
        assert sum(held(engine, keys) for keys in prompts[1:]) == 0
    finally:
        control.close()


def test_copies_go_first_unless_they_are_used_again(engine: Ledger) -> None:
    once, again = prompt(1), prompt(2)
    store(engine, once, copies=True)
    store(engine, again, copies=True)
    # The request that had them pulled.
    use(engine, once)
    use(engine, again)
    own = [prompt(10 + number) for number in range(6)]
    for keys in own:
        store(engine, keys)
    use(engine, again)
    store(engine, prompt(20))
    assert held(engine, once) == 0
    assert held(engine, again) == 8
    assert [held(engine, keys) for keys in own] == [8] * 6


def test_a_copy_that_its_request_has_not_looked_at_yet_is_pinned_and_stays(engine: Ledger) -> None:
    keys = prompt(1)
    allocated = engine.allocate(8, LANDING)
    assert allocated is not None
    engine.publish(allocated[0], b"".join(keys), True, copies=True)
    for number in range(20):
        store(engine, prompt(10 + number))
    assert held(engine, keys) == 8
    engine.unpin_many(allocated[0])
    store(engine, prompt(50))
    assert held(engine, keys) == 0


def test_an_allocation_that_fails_takes_nothing(engine: Ledger) -> None:
    prompts = fill(engine)
    pinned = engine.pin_many(b"".join(prompts[3]))
    assert engine.allocate(BLOCKS - 7, FILLING) is None
    assert sum(held(engine, keys) for keys in prompts) == BLOCKS
    allocated = engine.allocate(BLOCKS - 8, FILLING)
    assert allocated is not None
    assert held(engine, prompts[3]) == 8
    engine.unpin_many(pinned)


def test_a_scan_costs_what_is_used_again_and_again_nothing() -> None:
    hot = [tuple(range(100 * number, 100 * number + 10)) for number in range(8)]
    choices = random.Random(1)
    requests: list[Request] = []
    for number in range(400):
        requests.append(choices.choice(hot))
        requests.append(tuple(range(10**6 + 50 * number, 10**6 + 50 * number + 50)))
    asked = sum(map(len, requests))
    # All of what is hot, but for its first time.
    assert replay(requests, 200) * asked >= 0.9 * 10 * 400
    assert lru(requests, 200) * asked < 0.6 * 10 * 400


def agents(seed: int) -> list[Request]:
    """Sessions whose prompts grow with each turn, some at a time."""
    choices = random.Random(seed)
    made: list[Request] = []
    new = 10**6
    open_sessions: list[Request] = []
    for _ in range(2500):
        if len(open_sessions) < 12:
            open_sessions.append((*range(6), *range(new, new + choices.randint(5, 30))))
            new += 100
        chosen = choices.randrange(len(open_sessions))
        made.append(open_sessions[chosen])
        open_sessions[chosen] += tuple(range(new, new + choices.randint(1, 5)))
        new += 100
        if choices.random() < 0.03:
            del open_sessions[chosen]
    return made


@pytest.mark.parametrize("blocks", [300, 600, 1200])
@pytest.mark.parametrize("kind", ["chats", "agents"])
def test_it_hits_about_as_much_as_the_best_of_others(kind: str, blocks: int) -> None:
    requests = generate_trace(2500, seed=3) if kind == "chats" else agents(3)
    best = max(model(requests, blocks) for model in (lru, arc, s3_fifo))
    assert replay(requests, blocks) >= 0.96 * best
