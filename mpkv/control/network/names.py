"""Looks peers' names up on threads of its own.

libzmq would do it in the one thread that carries every outgoing connection, and a resolver
that does not answer would hold all of them up.
"""

import errno
import queue
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from mpkv.control.network.addresses import is_numeric

THREADS = 8
# Of those whose lookup has not ended; more are refused at once.
MAX_PENDING = 256
MAX_KNOWN = 1024
GOOD_S = 10.0
BAD_S = 1.0
# Of lookups because what is known does not answer: no storm when hundreds of peers are down,
# and no full queue for those whose name is not known yet.
RENEWALS_PER_S = 128
MAX_RENEWING = MAX_PENDING // 2
STACK_BYTES = 512 << 10


class Known(NamedTuple):
    asked_at: float
    until: float
    answer: str | OSError


class Names:
    """`wake()` is called, on any thread, whenever another answer is there."""

    def __init__(
        self, wake: Callable[[], None], look_up: Callable[[str], str] | None = None
    ) -> None:
        self._wake = wake
        self._look_up = look_up or first_address
        self._asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[str, str | OSError]] = queue.SimpleQueue()
        # When each was asked for.
        self._pending: dict[str, float] = {}
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._threads = 0
        # In this second, and when it began.
        self._renewals = 0
        self._second = 0.0

    def find(self, host: str, now: float) -> str | OSError | None:
        """The numeric address of `host`; why there is none; None while that is not known."""
        if is_numeric(host):
            return host
        self._take_answers(now)
        known = self._known.get(host)
        if known is not None and now < known.until:
            return known.answer
        if host in self._pending:
            return None
        if len(self._pending) >= MAX_PENDING:
            return OSError(errno.EAGAIN, f"{MAX_PENDING} names are being looked up already")
        self._ask(host, now)
        return None

    def renewed(self, host: str, since: float, now: float) -> str | OSError | None:
        """As `find`, but only what was looked up at `since`, which has come, or later."""
        if is_numeric(host):
            return host
        self._take_answers(now)
        known = self._known.get(host)
        if known is not None and known.asked_at >= since:
            return known.answer
        if now - self._second >= 1.0:
            self._renewals, self._second = 0, now
        bounded = self._renewals >= RENEWALS_PER_S or len(self._pending) >= MAX_RENEWING
        if host not in self._pending and not bounded:
            self._renewals += 1
            self._ask(host, now)
        return None

    def _ask(self, host: str, now: float) -> None:
        self._pending[host] = now
        self._asked.put(host)
        if self._threads < min(THREADS, len(self._pending)):
            self._start_thread()

    def _take_answers(self, now: float) -> None:
        while not self._answers.empty():
            host, answer = self._answers.get()
            until = now + (GOOD_S if isinstance(answer, str) else BAD_S)
            self._known[host] = Known(self._pending.pop(host), until, answer)
            self._known.move_to_end(host)
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)

    def _start_thread(self) -> None:
        before = threading.stack_size(STACK_BYTES)
        try:
            threading.Thread(target=self._work, name="names", daemon=True).start()
        finally:
            threading.stack_size(before)
        self._threads += 1

    def _work(self) -> None:
        while True:
            host = self._asked.get()
            try:
                answer: str | OSError = self._look_up(host)
            # What a resolver raises beside OSError is nobody's promise, and no thread's end.
            except Exception as error:
                answer = error if isinstance(error, OSError) else OSError(errno.EINVAL, str(error))
            self._answers.put((host, answer))
            self._wake()


def first_address(host: str) -> str:
    """The address that the resolver names first; IPv4 if it names any, as most listen there."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    found.sort(key=lambda entry: entry[0] is not socket.AF_INET)
    return str(found[0][4][0])
