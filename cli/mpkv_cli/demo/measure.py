"""The demo's requests: what B's first token costs with and without A's cache."""

import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from mpkv.errors import HelperFailed
from mpkv_cli.demo.client import Answer, Metrics, Prompt
from mpkv_cli.demo.replica import Replica

# 128 full blocks of 128 tokens, and a rest that B computes itself.
PROMPT_TOKENS = 16_461
BLOCK_TOKENS = 128
ANSWER_TOKENS = 16
BUSY_PROMPTS, BUSY_TOKENS = 3, 24_576
REQUEST_S = 180.0
# B asks after so many steps of A's load.
BUSY_STEPS = 4
POLL_S = 0.02

USAGE = "vllm:kv_cache_usage_perc"


@dataclass(frozen=True)
class Sample:
    """One prompt: computed by A, answered by B from A's blocks, computed again by B.

    `step_s` is the length of A's scheduler steps just before, 0 when A was idle.
    """

    lookup_delay_s: float
    pull_s: float
    pulled_bytes: int
    reused_tokens: int
    ttft_shared_s: float
    ttft_local_s: float
    step_s: float
    identical: bool
    misses: int


def reusable_tokens() -> int:
    return PROMPT_TOKENS // BLOCK_TOKENS * BLOCK_TOKENS


def warm_up(a: Replica, b: Replica) -> None:
    """First requests on both sides: connections, caches of code, page faults."""
    prompt = make_prompt("warm-up", PROMPT_TOKENS)
    _complete(a, prompt)
    b.client.complete(prompt, max_tokens=ANSWER_TOKENS, timeout_s=REQUEST_S, source=a.as_source)


def measure(a: Replica, b: Replica, name: str, *, busy: bool) -> Sample:
    prompt = make_prompt(name, PROMPT_TOKENS)
    on_a = _complete(a, prompt)
    load = [make_prompt(f"{name}-load-{i}", BUSY_TOKENS) for i in range(BUSY_PROMPTS)]
    with a.client.load(load, REQUEST_S) if busy else nullcontext():
        step_s = wait_busy(a) if busy else 0.0
        before = b.client.metrics()
        on_b = b.client.complete(
            prompt, max_tokens=ANSWER_TOKENS, timeout_s=REQUEST_S, source=a.as_source
        )
        after = _pull_counted(b, before)
        if busy:
            require_busy(a)
    # Another salt makes other keys: the same tokens, and nothing to hit.
    alone = _complete(b, prompt, salt=name)
    return Sample(
        lookup_delay_s=mean(before, after, "mpkv:lookup_delay_seconds"),
        pull_s=mean(before, after, "mpkv:pull_seconds"),
        pulled_bytes=int(grown(before, after, "mpkv:pulled_bytes_total")),
        reused_tokens=int(
            grown(before, after, "vllm:prompt_tokens_cached_by_source_total", 'source="p2p"')
        ),
        ttft_shared_s=on_b.ttft_s,
        ttft_local_s=alone.ttft_s,
        step_s=step_s,
        identical=on_a.tokens == on_b.tokens == alone.tokens,
        misses=int(grown(before, after, "mpkv:pull_misses_total")),
    )


def make_prompt(name: str, tokens: int) -> Prompt:
    """Random bytes, the same for the same name, with no prefix in common with another."""
    return list(random.Random(name).randbytes(tokens))


def _complete(replica: Replica, prompt: Prompt, salt: str = "") -> Answer:
    return replica.client.complete(prompt, max_tokens=ANSWER_TOKENS, timeout_s=REQUEST_S, salt=salt)


def wait_busy(replica: Replica) -> float:
    """Until the replica is in the middle of its load; returns the length of its steps."""
    ends = []
    usage = replica.client.metrics().total(USAGE)
    for _ in range(BUSY_STEPS):
        usage = _usage_above(replica, usage)
        ends.append(time.monotonic())
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def _usage_above(replica: Replica, usage: float) -> float:
    """Each step of a prefill takes more of the KV cache: this waits for the next."""
    metrics = poll(replica, lambda now: now.total(USAGE) > usage, "compute its load")
    return metrics.total(USAGE)


def require_busy(replica: Replica) -> None:
    if replica.client.metrics().total("vllm:num_requests_running") == 0:
        raise HelperFailed(f"replica {replica.name} finished its load too early to be busy")


def _pull_counted(b: Replica, before: Metrics) -> Metrics:
    name = "mpkv:lookup_delay_seconds_count"
    return poll(b, lambda now: now.total(name) > before.total(name), "count its pull")


def poll(replica: Replica, done: Callable[[Metrics], bool], what: str) -> Metrics:
    deadline = time.monotonic() + 30.0
    while time.monotonic() < deadline:
        replica.require_alive()
        metrics = replica.client.metrics()
        if done(metrics):
            return metrics
        time.sleep(POLL_S)
    raise HelperFailed(f"replica {replica.name} did not {what} within 30 s; see {replica.log}")


def grown(before: Metrics, after: Metrics, name: str, label: str = "") -> float:
    return after.total(name, label) - before.total(name, label)


def mean(before: Metrics, after: Metrics, histogram: str) -> float:
    count = grown(before, after, f"{histogram}_count")
    return grown(before, after, f"{histogram}_sum") / count if count else 0.0
