"""One measured request to the destination, with what its server counted meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass

from mpkv_cli.bench.against import VLLM_P2P
from mpkv_cli.bench.e2e_engines import MPKV, Pair
from mpkv_cli.demo.client import Answer, Metrics, Prompt
from mpkv_cli.demo.measure import ANSWER_TOKENS, REQUEST_S, grown, mean, poll, reusable_tokens

IDLE, BUSY, SATURATED, LOCAL_HIT = "source idle", "source busy", "saturated", "saturated, local"

# From the destination's first look at the request (mpkv: from its arrival there) until the
# blocks are in its tier and its scheduler knows.
LOOKUP_DELAY = {
    MPKV: "mpkv:lookup_delay_seconds",
    VLLM_P2P: "vllm:kv_offload_lookup_async_delay_seconds",
}
CACHED = "vllm:prompt_tokens_cached_by_source_total"


@dataclass(frozen=True)
class Sample:
    """Seconds. The parts of a pull are mpkv's alone, and 0 otherwise: until the source's
    grant, and until its confirmation that follows the READ. `step_s` is the length of the
    steps of whichever engine was busy."""

    system: str
    state: str
    ttft_s: float
    lookup_delay_s: float
    granted_s: float
    confirmed_s: float
    step_s: float
    reused_tokens: int
    identical: bool

    @property
    def whole(self) -> bool:
        """Whether all that could be reused was, and the tokens are right."""
        return self.identical and self.reused_tokens >= reusable_tokens()


def ask(
    pair: Pair, system: str, state: str, prompt: Prompt, expected: Answer, step_s: float
) -> Sample:
    """Ask `b` for a prompt that `a` holds, or that its own tier holds if so named."""
    pulled = state != LOCAL_HIT
    before = pair.b.client.metrics()
    answer = pair.b.client.complete(
        prompt,
        max_tokens=ANSWER_TOKENS,
        timeout_s=REQUEST_S,
        source=pair.a.as_source if pulled else None,
    )
    after = _counted(pair, system, before, pulled)
    source = "p2p" if pulled else "host"
    return Sample(
        system=system,
        state=state,
        ttft_s=answer.ttft_s,
        lookup_delay_s=mean(before, after, LOOKUP_DELAY[system]) if pulled else 0.0,
        granted_s=mean(before, after, "mpkv:grant_seconds"),
        confirmed_s=mean(before, after, "mpkv:pull_seconds"),
        step_s=step_s,
        reused_tokens=int(grown(before, after, CACHED, f'source="{source}"')),
        identical=answer.tokens == expected.tokens,
    )


def of(samples: Sequence[Sample], system: str, state: str) -> list[Sample]:
    return [sample for sample in samples if (sample.system, sample.state) == (system, state)]


def _counted(pair: Pair, system: str, before: Metrics, pulled: bool) -> Metrics:
    name = f"{LOOKUP_DELAY[system]}_count" if pulled else CACHED
    return poll(pair.b, lambda now: now.total(name) > before.total(name), "count its hit")
