"""Prompts that share prefixes, and what an engine without a connector answers to them.

Engines that compute the same in other company differ in the last bits. Only prompts are
taken whose every next token is clearly the likeliest, by far more than such bits can be,
so that equal blocks mean equal tokens whatever is computed together.
"""

import random
from dataclasses import dataclass

from tests.e2e.servers import Server

BLOCK = 128
ANSWER_TOKENS = 24
ROOTS = 4
MOST_BLOCKS = 24
# In nats. Crowds of requests were seen to move it by 2e-5 in float32.
CLEAR = 1e-3
TRIES = 20


@dataclass(frozen=True)
class Prompt:
    tokens: list[int]
    answer: list[int]


def draw_prompts(reference: Server, seed: int, count: int) -> list[Prompt]:
    """Ask `reference`, which must not have a connector."""
    choices = random.Random(f"prompts {seed}")
    stems = [_text(choices, choices.randint(2, 6) * BLOCK) for _ in range(ROOTS)]
    prompts = []
    for _ in range(count):
        stem = choices.choice(stems)
        longest = MOST_BLOCKS - len(stem) // BLOCK
        body = stem + _text(choices, choices.randint(1, longest) * BLOCK)
        if choices.random() < 0.5:
            # Others go on from here.
            stems.append(body)
            stems = [stem for stem in stems if len(stem) < MOST_BLOCKS * BLOCK]
        prompts.append(_answered(reference, choices, body))
    return prompts


def _answered(reference: Server, choices: random.Random, body: list[int]) -> Prompt:
    for _ in range(TRIES):
        # Half of them need one block more before they end, which is not always there.
        tail = choices.randint(1, 2 * ANSWER_TOKENS)
        tokens = body + _text(choices, BLOCK - tail)
        answer = reference.complete(tokens, max_tokens=ANSWER_TOKENS)
        if answer.clearance >= CLEAR:
            return Prompt(tokens, answer.tokens)
    raise AssertionError(f"none of {TRIES} prompts has clear answers")


def _text(choices: random.Random, tokens: int) -> list[int]:
    return choices.choices(range(32, 127), k=tokens)
