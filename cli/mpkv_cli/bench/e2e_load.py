"""What saturates a destination: prompts that prefill on it without a pause."""

import http.client
import selectors
import threading
import time
from types import TracebackType
from typing import Self

from mpkv.errors import HelperFailed
from mpkv_cli.demo.client import Client
from mpkv_cli.demo.measure import REQUEST_S, make_prompt

LOOK_S = 0.05
ENDS_S = 60.0


class Saturation:
    """Keeps `prompts` prompts of `tokens` tokens each on a server: when one ends, the next
    begins. Use as a context manager; what is still running at its end is aborted."""

    def __init__(self, client: Client, name: str, prompts: int, tokens: int) -> None:
        self._client = client
        self._name = name
        self._prompts = prompts
        self._tokens = tokens
        self._posted = 0
        self._ends: list[float] = []
        self._failure = ""
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="saturation", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(ENDS_S)

    def period_s(self) -> float:
        """The time between the ends of two prompts, once two have ended."""
        with self._changed:
            self._wait_ends(2)
            return (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)

    def wait_phase(self, share: float) -> None:
        """Until that share of a period has passed since the end of a prompt."""
        period_s = self.period_s()
        with self._changed:
            self._wait_ends(len(self._ends) + 1)
        time.sleep(share * period_s)

    def _wait_ends(self, count: int) -> None:
        done = self._changed.wait_for(
            lambda: len(self._ends) >= count or bool(self._failure), ENDS_S
        )
        if self._failure or not done:
            raise HelperFailed(f"the load on the destination stands still: {self._failure}")

    def _run(self) -> None:
        with selectors.DefaultSelector() as waiting:
            try:
                for _ in range(self._prompts):
                    self._post(waiting)
                while not self._stop.is_set():
                    for key, _ in waiting.select(LOOK_S):
                        waiting.unregister(key.fileobj)
                        self._take(key.data)
                        self._post(waiting)
            except (OSError, http.client.HTTPException, HelperFailed) as error:
                with self._changed:
                    self._failure = str(error)
                    self._changed.notify_all()
            finally:
                for key in list(waiting.get_map().values()):
                    key.data.close()

    def _post(self, waiting: selectors.BaseSelector) -> None:
        self._posted += 1
        prompt = make_prompt(f"{self._name}-{self._posted}", self._tokens)
        connection = self._client.post(prompt, REQUEST_S)
        waiting.register(connection.sock, selectors.EVENT_READ, connection)

    def _take(self, connection: http.client.HTTPConnection) -> None:
        response = connection.getresponse()
        text = response.read()
        connection.close()
        if response.status != 200:
            raise HelperFailed(f"answered {response.status}: {text[:500]!r}")
        with self._changed:
            self._ends.append(time.monotonic())
            self._changed.notify_all()
