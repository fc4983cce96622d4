"""Threads that ask the engines for answers, and hang up on some of them."""

import http.client
import random
import threading
from collections.abc import Sequence

from tests.e2e.servers import Server
from tests.soak.prompts import ANSWER_TOKENS, Prompt
from tests.soak.tally import Tally

ASKERS_PER_SERVER = 7
# Far more than a pull's deadline and a crowd's turn may take.
ANSWER_S = 120.0
ABORTED_SHARE = 0.3
HINTED_SHARE = 0.8
IMPATIENCE_S = (0.001, 0.6)


class Load:
    """Asks from the beginning of its context to the end."""

    def __init__(
        self, servers: Sequence[Server], prompts: list[Prompt], seed: int, tally: Tally
    ) -> None:
        self._servers = servers
        self._prompts = prompts
        self._tally = tally
        self._stop = threading.Event()
        # Before it is set nobody hangs up.
        self._impatient = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(server, random.Random(f"{seed} {i} {n}")))
            for i, server in enumerate(servers)
            for n in range(ASKERS_PER_SERVER)
        ]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=2 * ANSWER_S)
            if thread.is_alive():
                self._tally.found("endless", "an asker never came back")

    def become_impatient(self) -> None:
        self._impatient.set()

    def _ask(self, server: Server, choices: random.Random) -> None:
        others = [other for other in self._servers if other is not server]
        while not self._stop.is_set():
            prompt = choices.choice(self._prompts)
            source = choices.choice(others) if choices.random() < HINTED_SHARE else None
            count = choices.randint(1, ANSWER_TOKENS)
            aborted = choices.random() < ABORTED_SHARE
            early, patience_s = choices.random() < 0.5, choices.uniform(*IMPATIENCE_S)
            if not (aborted and self._impatient.is_set()):
                self._finish(server, source, prompt, count)
            elif early:
                self._abandon(server, source, prompt, patience_s)
            else:
                self._stream(server, source, prompt, ANSWER_TOKENS, tokens=count)
                self._tally.aborted()

    def _finish(self, server: Server, source: Server | None, prompt: Prompt, count: int) -> None:
        if self._stream(server, source, prompt, count):
            self._tally.answered()

    def _abandon(
        self, server: Server, source: Server | None, prompt: Prompt, patience_s: float
    ) -> None:
        """Hang up after a while, whatever has come."""
        plan = source.plan if source is not None else None
        try:
            server.stream(prompt.tokens, plan, ANSWER_TOKENS, timeout_s=patience_s)
        except TimeoutError:
            self._tally.aborted()

    def _stream(
        self,
        server: Server,
        source: Server | None,
        prompt: Prompt,
        count: int,
        *,
        tokens: int | None = None,
    ) -> bool:
        """Whether an answer, or the beginning of one up to `tokens`, came and is right."""
        plan = source.plan if source is not None else None
        what = f"{server.plan.name}, {len(prompt.tokens)} tokens, source {plan}"
        try:
            found = server.stream(prompt.tokens, plan, count, tokens=tokens, timeout_s=ANSWER_S)
        except TimeoutError:
            self._tally.found("endless", f"{what}: nothing for {ANSWER_S:g} s")
            return False
        except (OSError, http.client.HTTPException, AssertionError) as error:
            self._tally.found("wrong", f"{what}: no answer: {error!r}")
            # Whatever it is, it need not be told a thousand times.
            self._stop.wait(1.0)
            return False
        wanted = prompt.answer[: len(found)]
        if found != wanted or (tokens is None and len(found) != count):
            self._tally.found("wrong", f"{what}: {found} instead of {wanted}")
            return False
        return True
