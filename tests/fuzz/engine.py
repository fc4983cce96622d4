"""An engine that pushes whatever it likes to its control plane.

A record that cannot be read ends the control plane in good order, and the supervisor brings
another; whatever can be read is answered by its deadline, and other pulls go on.
"""

import contextlib
import math
import time

import msgspec
from hypothesis import strategies as st
from msgspec import Struct

from mpkv.messages import CancelPull, KeyGroup, Pull, Pulled, ToControl, ToEngine
from tests.control.common import CONTENT, keys, wait_for
from tests.control.harness import Plane
from tests.fuzz.explore import explore
from tests.fuzz.shapes import bytes_of, groups, numbers, packed, texts

HELD = keys("held", 4)
DEADLINE_S = 0.3
# Above what the harness counts its own pulls by.
FIRST_PULL = 1 << 20
ENDED_BY_A_RECORD = 1

_now = st.builds(time.monotonic)
_times = st.one_of(
    _now,
    _now.map(lambda now: now + DEADLINE_S),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e308]),
)
_pulls = st.integers(FIRST_PULL, FIRST_PULL + 6) | st.sampled_from(
    [-1, -(1 << 63), 1 << 31, (1 << 63) - 1, (1 << 64) - 1]
)
_ports = st.sampled_from([0, 1, 65535, 65536])


def _records(source: str) -> st.SearchStrategy[list[bytes]]:
    peers = st.just(source) | texts | _ports.map(lambda port: f"127.0.0.1:{port}")
    epochs = st.just(0) | numbers
    contents = st.just(CONTENT) | st.binary(max_size=20)
    slots = packed(8, 64)
    pull = st.builds(
        Pull, _pulls, texts, peers, groups(HELD), slots, epochs, _times, _times, content=contents
    )
    # Good but for its times.
    group, four = KeyGroup(b"".join(HELD), 16, 0), bytes(32)
    timed = st.builds(
        lambda *times: Pull(FIRST_PULL, "r", source, (group,), four, 0, *times, content=CONTENT),
        _times,
        _times,
    )
    records: st.SearchStrategy[Struct] = st.one_of(
        pull, pull, pull, timed, st.builds(CancelPull, _pulls | numbers)
    )
    return st.lists(bytes_of(records), max_size=8)


class Deceived(Plane):
    """A control plane that is told of pulls which its engine keeps no account of."""

    def __init__(self) -> None:
        super().__init__("plane", deadline_s=DEADLINE_S)
        self.wait_ready()

    def take_back(self, message: ToEngine) -> None:
        if 0 < message.pull <= self.pulls:
            super().take_back(message)


class Besieged:
    """A control plane between its engine and `source`; another one when it has ended."""

    def __init__(self, source: Plane) -> None:
        self._source = source
        self._plane = Deceived()

    def close(self) -> None:
        self._plane.__exit__()

    def examine(self, records: list[bytes]) -> None:
        plane = self._plane
        told = set()
        for record in records:
            assert plane._producer.push(record)
            with contextlib.suppress(msgspec.MsgspecError):
                message = msgspec.msgpack.decode(record, type=ToControl)
                if isinstance(message, Pull):
                    told.add(message.pull)

        def all_ended() -> bool:
            plane.pump()
            return self._is_gone() or told <= {record.pull for record in plane.records}

        wait_for(all_ended, f"an end of each pull; log:\n{plane.log()[-3000:]}")
        wait_for(self._serves, f"a pull that behaves; log:\n{plane.log()[-3000:]}")
        if self._is_gone():
            self._replace()
        self._plane.records.clear()

    def _is_gone(self) -> bool:
        return self._plane.process.poll() is not None

    def _serves(self) -> bool:
        """Whether a pull that makes sense works, as if nothing else had been said."""
        plane = self._plane
        pull = plane.pull(self._source.address, HELD)
        wait_for(lambda: self._is_gone() or plane.ended(pull), f"an answer to pull {pull}")
        return self._is_gone() or isinstance(plane.answers(pull)[0], Pulled)

    def _replace(self) -> None:
        log = self._plane.log()[-3000:]
        assert self._plane.process.poll() == ENDED_BY_A_RECORD, log
        assert "the control plane ends: " in log, log
        self.close()
        self._plane = Deceived()


def run(seconds: float, seed: int) -> int:
    with Plane("source") as source:
        source.wait_ready()
        source.store(HELD)
        besieged = Besieged(source)
        try:
            return explore(besieged.examine, _records(source.address), seconds, seed)
        finally:
            besieged.close()
