"""Warnings about what peers do: each is said once, and no flood of them fills the log."""

import logging
from collections import OrderedDict

REMEMBERED = 1024
LINES_PER_PERIOD = 60
PERIOD_S = 60.0


class SayOnce:
    """Says a text again only after `REMEMBERED` others; at most `LINES_PER_PERIOD` in a
    period, and how many it kept to itself in the next."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: OrderedDict[str, None] = OrderedDict()
        self._period_ends = 0.0
        self._lines = 0

    def __call__(self, text: str, now: float) -> None:
        if text in self._said:
            self._said.move_to_end(text)
            return
        if now >= self._period_ends:
            if self._lines > LINES_PER_PERIOD:
                self._log.warning("%d more such warnings", self._lines - LINES_PER_PERIOD)
            self._period_ends, self._lines = now + PERIOD_S, 0
        self._lines += 1
        if self._lines > LINES_PER_PERIOD:
            return
        self._log.warning("%s", text)
        self._said[text] = None
        if len(self._said) > REMEMBERED:
            self._said.popitem(last=False)
