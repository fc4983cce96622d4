"""Two real engines, one pulling from the other, as their users see them.

The tests share one pair and run in order; each leaves both engines serving.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.docs.commands import asked_of_engines
from tests.e2e.conftest import BLOCK, PROMPTS, SOAK_SEED, LongPrefills, Reference
from tests.e2e.servers import Answer, Fleet, NodePlan, Server
from tests.soak.runner import Runner
from tests.support.standin import free_port

Pair = tuple[Server, Server]
Expected = dict[str, list[int]]
# At least; a quarter of it is calm.
SOAK_S = 24.0


def pulled(server: Server, peer: Server) -> float:
    return server.metric("mpkv:pulled_blocks_total", peer=f"127.0.0.1:{peer.plan.port}")


def misses(server: Server, reason: str) -> float:
    return server.metric("mpkv:pull_misses_total", reason=reason)


def from_peers(server: Server) -> float:
    return server.metric("vllm:prompt_tokens_cached_by_source_total", source="p2p")


@pytest.fixture(autouse=True)
def nothing_held(pair: Pair) -> Iterator[None]:
    """After each test: no pin, no slot in flight, on either engine."""
    yield
    for server in pair:
        if not server.processes():
            continue
        until = time.monotonic() + 20
        while True:
            # Gauges move with steps, and an idle engine takes none.
            server.complete([65] * 3, max_tokens=2)
            held = {
                state: server.metric("mpkv:tier_blocks", state=state)
                for state in ("landing", "filling", "draining", "control_pins", "engine_pins")
            }
            if not any(held.values()):
                break
            assert time.monotonic() < until, f"{server.plan.name} still holds {held}"
            time.sleep(0.2)


def test_a_pulled_prompt(pair: Pair, expected: Expected) -> None:
    a, b = pair
    assert a.complete(PROMPTS["whole"]).tokens == expected["whole"]
    blocks, tokens = pulled(b, a), from_peers(b)
    assert b.complete(PROMPTS["whole"], source=a.plan).tokens == expected["whole"]
    assert pulled(b, a) - blocks == 32
    assert from_peers(b) - tokens == 32 * BLOCK
    assert b.metric("mpkv:lookup_delay_seconds_count") >= 1


def test_the_commands_of_the_documents(pair: Pair) -> None:
    if missing := [name for name in ("curl", "ps") if shutil.which(name) is None]:
        pytest.skip(f"no {missing[0]} here")
    a, b = pair
    ports = {server.plan.name: server.plan.http_port for server in pair}
    said, before = "", pulled(b, a)
    for script in asked_of_engines(ports, a.plan.port, "tiny"):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script.text],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{script.place}: {done.stderr}"
        said += f"{done.stdout}\n"
    decode = json.JSONDecoder().raw_decode
    first, end = decode(said, said.index("{"))
    second, end = decode(said, end)
    assert first["choices"][0]["text"] == second["choices"][0]["text"]
    blocks = second["usage"]["prompt_tokens"] // BLOCK
    assert pulled(b, a) - before == blocks > 20
    assert re.match(rf"mpkv:pulled_blocks_total{{.*}} {before + blocks}\n", said[end:])
    assert "mpkv:tier_blocks{" in said
    for helper in ("mpkv-control", "mpkv-target", "mpkv-initiator"):
        assert re.search(rf" {helper}\n", said)


def test_a_half_known_prompt(pair: Pair, expected: Expected) -> None:
    a, b = pair
    assert a.complete(PROMPTS["base"]).tokens == expected["base"]
    blocks, tokens = pulled(b, a), from_peers(b)
    assert b.complete(PROMPTS["half"], source=a.plan).tokens == expected["half"]
    assert pulled(b, a) - blocks == 16
    assert from_peers(b) - tokens == 16 * BLOCK


def test_an_unknown_prompt(pair: Pair, expected: Expected) -> None:
    a, b = pair
    before = misses(b, "not_held")
    assert b.complete(PROMPTS["unknown"], source=a.plan).tokens == expected["unknown"]
    assert misses(b, "not_held") - before == 1


def test_a_source_that_the_cluster_file_does_not_list(
    fleet: Fleet, pair: Pair, expected: Expected
) -> None:
    _, b = pair
    stranger = NodePlan("stranger", free_port(), 0)
    before = misses(b, "refused")
    assert b.complete(PROMPTS["unknown"], source=stranger).tokens == expected["unknown"]
    assert misses(b, "refused") - before == 1
    assert f"127.0.0.1:{stranger.port} is no node of the cluster file" in b.log()


def test_a_busy_source_grants_while_its_step_runs(
    fleet: Fleet, pair: Pair, expected: Expected
) -> None:
    a, b = pair
    names = ["busy0", "busy1", "busy2"]
    for name in names:
        assert a.complete(PROMPTS[name]).tokens == expected[name]
    blocks = pulled(b, a)
    with LongPrefills(a):
        for name in names:
            answer = b.complete(PROMPTS[name], source=a.plan)
            assert answer.tokens == expected[name]
    assert pulled(b, a) - blocks == 3 * 16
    grants = [event["at"] for event in fleet.events("a-control", "grant")][-3:]
    scheduled = [
        event["at"] for event in fleet.events("a-engine", "step_scheduled") if event["tokens"]
    ]
    done = [event["at"] for event in fleet.events("a-engine", "step_done")]
    inside = 0
    for grant in grants:
        started = max((at for at in scheduled if at < grant), default=0.0)
        ended = min((at for at in done if at > started), default=0.0)
        inside += started < grant < ended
    assert inside >= 1, "no grant fell into a running step"


def test_a_pull_begins_while_its_own_engine_is_in_a_step(
    fleet: Fleet, pair: Pair, expected: Expected
) -> None:
    a, b = pair
    names = ["early0", "early1", "early2"]
    for name in names:
        assert a.complete(PROMPTS[name]).tokens == expected[name]
    blocks = pulled(b, a)
    with LongPrefills(b):
        for name in names:
            assert b.complete(PROMPTS[name], source=a.plan).tokens == expected[name]
    assert pulled(b, a) - blocks == 3 * 16
    claims = fleet.events("b-engine", "pull_claimed")[-3:]
    assert len(claims) == 3
    # Between its beginning and the scheduler's hearing of it a step ended.
    ends = [event["at"] for event in fleet.events("b-engine", "step_done")]
    assert any(claim["started"] < end < claim["at"] for claim in claims for end in ends)


def test_a_reset_of_one_node_alone_isolates_nobody(pair: Pair, expected: Expected) -> None:
    a, b = pair
    for reset in (a, b, a):
        a.complete(PROMPTS["reset"])
        assert b.reset_cache(running=True)
        if reset is a:
            assert a.reset_cache(running=True)
            assert a.complete(PROMPTS["reset"]).tokens == expected["reset"]
        # It is the first that b hears since its own reset.
        before = pulled(b, a)
        assert b.complete(PROMPTS["reset"], source=a.plan).tokens == expected["reset"]
        assert pulled(b, a) - before == 8


def test_other_weights_are_never_shared(pair: Pair, expected: Expected) -> None:
    a, b = pair
    tokens = PROMPTS["weights"]
    assert a.complete(tokens).tokens == expected["weights"]
    a.flip_weights()
    # In the tier of a lie blocks of the old weights; of the new ones some come beside them.
    for prompt in (PROMPTS["unknown"], tokens):
        for _ in range(2):
            a.complete(prompt)
            before, content = pulled(b, a), misses(b, "content")
            assert b.reset_cache(running=True)
            assert b.complete(prompt, source=a.plan, max_tokens=1).tokens
            assert (pulled(b, a) - before, misses(b, "content") - content) == (0, 1)
    assert "the weights have changed while blocks of the old ones" in a.log()
    # From the reset on, a has a content again, and it is another than that of b.
    assert a.reset_cache(running=True)
    assert a.complete(tokens).tokens != expected["weights"]
    content = misses(b, "content")
    assert b.reset_cache(running=True)
    assert b.complete(tokens, source=a.plan).tokens == expected["weights"]
    assert misses(b, "content") - content == 1
    assert "its weights are others" in a.log()
    # And back to what they were, for both of them in another order.
    a.flip_weights()
    assert a.reset_cache(running=True)
    assert b.reset_cache(running=True)
    b.flip_weights()
    b.flip_weights()
    assert a.complete(tokens).tokens == expected["weights"]
    before = pulled(b, a)
    assert b.complete(tokens, source=a.plan).tokens == expected["weights"]
    assert pulled(b, a) - before == 8


def test_load_aborts_preemptions_resets_and_dying_helpers_at_random(
    pair: Pair, reference: Reference
) -> None:
    """A short run of `make soak`, under one seed."""
    runner = Runner(pair, reference.soak, SOAK_SEED)
    runner.run(SOAK_S)
    tally = runner.tally
    assert tally.clean, "\n".join(tally.summary())
    # Otherwise it met nothing that it could have spoiled.
    assert min(tally.requests, tally.hits, tally.aborts, tally.preemptions) > 0


def test_a_source_that_never_answers(pair: Pair, expected: Expected) -> None:
    a, b = pair
    a.complete(PROMPTS["silent"])
    before = misses(b, "timed_out") + misses(b, "peer_down")
    stopped = a.kill("mpkv.control", signal.SIGSTOP)
    try:
        assert b.complete(PROMPTS["silent"], source=a.plan).tokens == expected["silent"]
    finally:
        a.kill("mpkv.control", signal.SIGCONT)
    assert misses(b, "timed_out") + misses(b, "peer_down") - before == 1
    assert a.processes("mpkv.control") == stopped, "the source was not to be restarted"
    _pull_until_it_works(a, b, "after silent", expected)


def test_helpers_killed_during_a_pull(pair: Pair, expected: Expected) -> None:
    a, b = pair
    a.complete(PROMPTS["helpers"])
    a.kill("mpkv.control", signal.SIGSTOP)
    answers: list[Answer] = []
    try:
        request = threading.Thread(
            target=lambda: answers.append(b.complete(PROMPTS["helpers"], source=a.plan))
        )
        request.start()
        _until(lambda: bool(b.metric("vllm:num_requests_waiting")), "the request never waited")
        killed = b.processes("mpkv.control") + b.processes("mpkv.registration")
        assert len(killed) == 3
        for pid in killed:
            # The first death already has the supervisor end the others.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        request.join(timeout=60)
    finally:
        a.kill("mpkv.control", signal.SIGCONT)
    assert [answer.tokens for answer in answers] == [expected["helpers"]]
    _until(
        lambda: (
            len(b.processes("mpkv.control")) == 1
            and len(b.processes("mpkv.registration")) == 2
            and not set(b.processes("mpkv.")) & set(killed)
        ),
        "the helpers were not replaced",
    )
    _pull_until_it_works(a, b, "after helpers", expected)


def test_the_source_is_killed_and_restarted(fleet: Fleet, pair: Pair, expected: Expected) -> None:
    a, b = pair
    a.complete(PROMPTS["killed"])
    a.kill_all()
    assert b.complete(PROMPTS["killed"], source=a.plan).tokens == expected["killed"]
    again = fleet.launch(fleet.a)
    again.wait_healthy()
    # The one has had no reset and the other many.
    _pull_until_it_works(again, b, "restarted", expected)


def test_helpers_are_gone_before_vllm_kills_what_is_left(pair: Pair) -> None:
    """At SIGTERM, in the middle of a request."""
    _, b = pair
    helpers = b.processes("-m mpkv.")
    assert len(helpers) == 3

    def long_request() -> None:
        # It ends with the server.
        with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
            b.complete([65] * 40 * BLOCK, max_tokens=64)

    request = threading.Thread(target=long_request)
    request.start()
    _until(lambda: bool(b.metric("vllm:num_requests_running")), "the request never ran")
    before = len(b.log())
    stopping = threading.Thread(target=b.stop)
    stopping.start()
    _until(lambda: "shutdown triggered" in b.log()[before:], "it heeds no SIGTERM")
    _until(lambda: not set(helpers) & set(b.processes()), "helpers live on", 2.0)
    stopping.join(60.0)
    request.join(60.0)
    said = b.log()[before:]
    assert not re.search(r"kill.*mpkv|mpkv.*is gone", said)


def _until(condition: Callable[[], bool], complaint: str, limit_s: float = 30.0) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, complaint
        time.sleep(0.05)


def _pull_until_it_works(source: Server, server: Server, name: str, expected: Expected) -> None:
    """Pull `name`, in growing prefixes until one is pulled: peers need a moment to
    find each other again, and every answer on the way must be right."""
    tokens = PROMPTS[name]
    assert source.complete(tokens).tokens == expected[name]
    before = pulled(server, source)
    for blocks in range(1, 8):
        server.complete(tokens[: blocks * BLOCK + 1], source=source.plan, max_tokens=1)
        if pulled(server, source) > before:
            break
        time.sleep(0.5)
    assert server.complete(tokens, source=source.plan).tokens == expected[name]
    assert pulled(server, source) > before, "pulls did not come back"
