"""Requests to one vLLM server, and its metrics."""

import http.client
import json
import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from mpkv.errors import HelperFailed

Prompt = list[int]


@dataclass(frozen=True)
class Source:
    """The node whose cache a request may reuse: its control plane's address."""

    host: str
    port: int


@dataclass(frozen=True)
class Answer:
    """`ttft_s` is the time from sending the request to its first token."""

    ttft_s: float
    tokens: tuple[int, ...]


class Metrics:
    """One reading of a server's Prometheus page."""

    def __init__(self, page: str) -> None:
        self._samples = [
            (match["name"], match["labels"] or "", float(match["value"]))
            for match in re.finditer(
                r"^(?P<name>[\w:]+)(\{(?P<labels>.*)\})? (?P<value>\S+)$", page, re.MULTILINE
            )
        ]

    def total(self, name: str, label: str = "") -> float:
        """The sum over all series of `name`, or over those with `label`, as `key="value"`."""
        return sum(value for n, labels, value in self._samples if n == name and label in labels)


class Client:
    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._model = ""

    def healthy(self) -> bool:
        try:
            return self._get("/health", timeout_s=5.0)[0] == 200
        # The server says itself what is wrong with a name that cannot be one.
        except (OSError, UnicodeError, http.client.InvalidURL):
            return False

    def metrics(self) -> Metrics:
        return Metrics(self._get("/metrics", timeout_s=30.0)[1].decode())

    def complete(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        timeout_s: float,
        source: Source | None = None,
        salt: str = "",
    ) -> Answer:
        """Generate greedily. A `salt` keeps the request from hitting what others cached.

        Raises HelperFailed if the server answers with an error or with too few tokens.
        """
        body = self._body(prompt, max_tokens)
        body |= {"stream": True, "return_token_ids": True}
        if source is not None:
            body["kv_transfer_params"] = {
                "remote_kv_source": {
                    "kv_request_id": f"demo-{time.monotonic_ns()}",
                    "remote_host": source.host,
                    "remote_port": source.port,
                }
            }
        if salt:
            body["cache_salt"] = salt
        tokens: list[int] = []
        ttft_s = 0.0
        started = time.monotonic()
        with self._post(body, timeout_s) as response:
            for event in _events(response):
                for choice in event.get("choices", ()):
                    if not tokens:
                        ttft_s = time.monotonic() - started
                    tokens += choice.get("token_ids") or ()
                if time.monotonic() - started > timeout_s:
                    raise HelperFailed(f"{self._place()}: no full answer within {timeout_s:.0f} s")
        if len(tokens) != max_tokens:
            raise HelperFailed(
                f"{self._place()}: expected {max_tokens} tokens, got {len(tokens)}; see its log"
            )
        return Answer(ttft_s, tuple(tokens))

    @contextmanager
    def load(self, prompts: list[Prompt], timeout_s: float) -> Iterator[None]:
        """Keep the server computing `prompts` inside the block; they are aborted after it."""
        connections = []
        try:
            for prompt in prompts:
                connections.append(self.post(prompt, timeout_s))
            yield
        finally:
            for connection in connections:
                connection.close()

    def post(self, prompt: Prompt, timeout_s: float) -> http.client.HTTPConnection:
        """Ask for one token and do not wait; closing the connection aborts the request."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            connection.request("POST", "/v1/completions", *_json(self._body(prompt, 1)))
        except BaseException:
            connection.close()
            raise
        return connection

    def flush_prefix_cache(self) -> bool:
        """Empty the engine's own KV cache and leave its tier as it is; False if it refused.

        Only servers with VLLM_SERVER_DEV_MODE offer that.
        """
        connection = http.client.HTTPConnection(self._host, self._port, timeout=30.0)
        with closing(connection):
            connection.request("POST", "/reset_prefix_cache?reset_external=false")
            response = connection.getresponse()
            return response.status == 200 and bool(json.loads(response.read())["success"])

    def _body(self, prompt: Prompt, max_tokens: int) -> dict[str, Any]:
        if not self._model:
            listing = json.loads(self._get("/v1/models", timeout_s=30.0)[1])
            self._model = listing["data"][0]["id"]
        return {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }

    def _place(self) -> str:
        return f"http://{self._host}:{self._port}"

    def _get(self, path: str, timeout_s: float) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        with closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()

    @contextmanager
    def _post(self, body: dict[str, Any], timeout_s: float) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        with closing(connection):
            connection.request("POST", "/v1/completions", *_json(body))
            response = connection.getresponse()
            if response.status != 200:
                text = response.read(2000).decode(errors="replace")
                raise HelperFailed(f"{self._place()}: answered {response.status}: {text}")
            yield response


def _json(body: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
    return json.dumps(body).encode(), {"Content-Type": "application/json"}


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            event: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
            if "error" in event:
                raise HelperFailed(f"the server ended its answer: {event['error']}")
            yield event
