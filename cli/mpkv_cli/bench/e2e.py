"""Two real engines: what a request gains from another engine's cache, and what it waits for.

mpkv and vLLM's own P2P tier take turns on equal engines, with the same prompts and the
same load. Each is started alone, since four engines would share the cores of two.
"""

from dataclasses import dataclass, field
from pathlib import Path

from mpkv_cli.bench.against import VLLM_P2P, require_vllm
from mpkv_cli.bench.e2e_engines import DESTINATION_STEP_TOKENS, MPKV, Pair, make_pair
from mpkv_cli.bench.e2e_load import Saturation
from mpkv_cli.bench.e2e_report import make_result
from mpkv_cli.bench.e2e_samples import BUSY, IDLE, LOCAL_HIT, SATURATED, Sample, ask
from mpkv_cli.bench.progress import Progress
from mpkv_cli.bench.result import Result
from mpkv_cli.demo.client import Answer
from mpkv_cli.demo.measure import (
    ANSWER_TOKENS,
    BUSY_PROMPTS,
    BUSY_TOKENS,
    PROMPT_TOKENS,
    REQUEST_S,
    make_prompt,
    require_busy,
    wait_busy,
    warm_up,
)
from mpkv_cli.demo.replica import Replica, stopped_at_exit, wait_healthy

START_S = 300.0
SATURATING_PROMPTS = 2


@dataclass(frozen=True)
class Plan:
    """`busy` names which engine is busy: the source, the destination, none, in turn.

    `sync_load_budget` is a size as in a cluster file, "" for none; both systems get it.
    """

    busy: tuple[str, ...]
    repeats: int
    against: str
    saturating_tokens: int
    output: Path
    sync_load_budget: str = ""
    trace_dir: str = ""


@dataclass
class _Found:
    samples: list[Sample] = field(default_factory=list)
    # TTFT of prompts that the destination computed itself, idle, by system.
    computed_s: dict[str, list[float]] = field(default_factory=dict)


def measure(plan: Plan, progress: Progress) -> Result:
    require_vllm()
    found = _Found()
    systems = (MPKV, VLLM_P2P) if plan.against == VLLM_P2P else (MPKV,)
    for system in systems:
        pair = make_pair(system, plan.output, plan.sync_load_budget, plan.trace_dir)
        with stopped_at_exit((pair.a, pair.b), progress.say):
            _start(pair, system, progress)
            _measure_system(pair, system, plan, found, progress)
    parameters = {
        "prompt_tokens": PROMPT_TOKENS,
        "repeats": plan.repeats,
        "busy": list(plan.busy),
        "source_load": f"{BUSY_PROMPTS} x {BUSY_TOKENS} tokens",
        "sync_load_budget": plan.sync_load_budget,
        "destination_load": f"{SATURATING_PROMPTS} x {plan.saturating_tokens} tokens",
    }
    return make_result(found.samples, found.computed_s, parameters)


def _start(pair: Pair, system: str, progress: Progress) -> None:
    progress.say(f"starting two engines with {system}; logs: {pair.a.log}, {pair.b.log}")
    for engine in (pair.a, pair.b):
        engine.start()
    wait_healthy((pair.a, pair.b), START_S, progress.say)
    progress.say("one warm-up prompt")
    warm_up(pair.a, pair.b)


def _measure_system(pair: Pair, system: str, plan: Plan, found: _Found, progress: Progress) -> None:
    for number in range(1, plan.repeats + 1):
        for state, busy in ((IDLE, "none"), (BUSY, "source")):
            if busy in plan.busy:
                sample = _pull(pair, system, state, number)
                found.samples.append(sample)
                progress.say(f"{system}, {number} of {plan.repeats}: {describe(sample)}")
    if "destination" in plan.busy:
        _measure_saturated(pair, system, plan, found, progress)


def _pull(pair: Pair, system: str, state: str, number: int) -> Sample:
    name = f"{state}-{number}"
    expected = _compute(pair.a, name)
    prompt = make_prompt(name, PROMPT_TOKENS)
    if state == IDLE:
        return ask(pair, system, state, prompt, expected, 0.0)
    load = [make_prompt(f"{name}-load-{i}", BUSY_TOKENS) for i in range(BUSY_PROMPTS)]
    with pair.a.client.load(load, REQUEST_S):
        step_s = wait_busy(pair.a)
        sample = ask(pair, system, state, prompt, expected, step_s)
        require_busy(pair.a)
    return sample


def _measure_saturated(
    pair: Pair, system: str, plan: Plan, found: _Found, progress: Progress
) -> None:
    """Pulls and local hits, in pairs that meet the load in the same phase of it."""
    expected: dict[tuple[str, int], Answer] = {}
    for number in range(1, plan.repeats + 1):
        progress.step(number, plan.repeats, f"{system}: prompts for the saturated destination")
        expected[SATURATED, number] = _compute(pair.a, f"{SATURATED}-{number}")
        # The destination keeps what it computes in its tier; its own cache is emptied.
        local = _compute(pair.b, f"{LOCAL_HIT}-{number}")
        expected[LOCAL_HIT, number] = local
        found.computed_s.setdefault(system, []).append(local.ttft_s)
    pair.b.flush_prefix_cache()
    with Saturation(
        pair.b.client, "saturating", SATURATING_PROMPTS, plan.saturating_tokens
    ) as load:
        for number in range(1, plan.repeats + 1):
            states = (SATURATED, LOCAL_HIT) if number % 2 else (LOCAL_HIT, SATURATED)
            for state in states:
                load.wait_phase((number - 0.5) / plan.repeats)
                prompt = make_prompt(f"{state}-{number}", PROMPT_TOKENS)
                step_s = load.period_s() / (plan.saturating_tokens / DESTINATION_STEP_TOKENS)
                sample = ask(pair, system, state, prompt, expected[state, number], step_s)
                found.samples.append(sample)
                progress.say(f"{system}, {number} of {plan.repeats}: {describe(sample)}")


def _compute(engine: Replica, name: str) -> Answer:
    return engine.client.complete(
        make_prompt(name, PROMPT_TOKENS), max_tokens=ANSWER_TOKENS, timeout_s=REQUEST_S
    )


def describe(sample: Sample) -> str:
    delay = f"lookup delay {sample.lookup_delay_s * 1000:,.1f} ms, " * (sample.state != LOCAL_HIT)
    wrong = "" if sample.whole else f"; reused {sample.reused_tokens:,} tokens"
    wrong += "" if sample.identical else ", tokens DIFFER"
    return f"{sample.state}: {delay}first token {sample.ttft_s * 1000:,.0f} ms{wrong}"
