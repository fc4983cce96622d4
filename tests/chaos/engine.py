"""`python -m tests.chaos.engine START`: one engine, ordered about on its standard input.

Its one thread does what a scheduler thread does with a real engine's books: it pulls,
looks up, loads from pinned blocks, stores, evicts and resets, and it compares every byte
that it was told is there.
"""

import contextlib
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from io import FileIO

import msgspec

from mpkv.cluster.settings import PeerAddress
from mpkv.engine.helper_process import HelperProcess
from mpkv.messages import MissReason
from tests.chaos.blocks import Blocks, ChaosStandIn
from tests.chaos.checks import Settling, Verifying
from tests.chaos.orders import (
    BLOCK_BYTES,
    BLOCKS,
    DEADLINE_S,
    Abandon,
    Abort,
    Fill,
    KillHelper,
    Leave,
    Order,
    Report,
    Reset,
    Resume,
    Settle,
    Start,
    StopHelper,
    Verify,
    Wrong,
)
from tests.chaos.pattern import prompt
from tests.chaos.requests import PROMPTS, Requests
from tests.support.standin import make_keys

REPORT_S = 0.2
STEP_S = 0.001
# How soon after the stop of its initiator new blocks are stored where a READ may write.
ABANDONED_S = 0.03
ABANDONED_BLOCKS = 64
# How long after a reset the weights may be unknown.
LOOK_S = 0.02
# Of the tier: room for two prompts.
HEAD_START = 0.125

Act = Callable[[], None]


class Life:
    """One life of one engine, from its start to `Leave` or to its death."""

    def __init__(self, start: Start, engine: ChaosStandIn, reports: FileIO) -> None:
        self._start = start
        self._reports = reports
        self._engine = engine
        self._choices = random.Random(start.tag)
        self._blocks = Blocks(engine, self._choices, self._tell)
        self._requests = Requests(start, engine, self._blocks, self._choices, self._tell)
        self._pulling = start.pulling
        self._timers: list[tuple[float, Act]] = []
        # Acts so long after the next pull has begun.
        self._aimed: list[tuple[float, Act]] = []
        self._abandoning: Abandon | None = None
        self._fills = 0
        self._filled: list[bytes] = []
        self._check: Settling | Verifying | None = None
        self._left = False
        self._decode = msgspec.json.Decoder(Order).decode
        self._unread = b""
        self._report_at = 0.0
        self._alarms = 0
        self._resets = 0

    def run(self) -> None:
        while not self._left:
            self._take_orders()
            self._act()
            if self._pulling:
                self._work()
            self._requests.step()
            self._blocks.step()
            self._audit()
            self._report()
            time.sleep(STEP_S)

    def _work(self) -> None:
        if self._requests.begin_some():
            for after_s, act in self._aimed:
                self._later(after_s, act)
            self._aimed.clear()
            if self._abandoning is not None:
                self._abandon(self._abandoning)
                self._abandoning = None
        self._blocks.begin_store(prompt(self._start.name, self._choices.randrange(PROMPTS)))

    def _audit(self) -> None:
        """What was right once may have been written over."""
        owner = self._choices.choice([*self._start.sources, self._start.name])
        self._blocks.hit(self._choices.choice(prompt(owner, self._choices.randrange(PROMPTS))))
        if self._filled:
            self._blocks.hit(self._choices.choice(self._filled))

    # --- reports -----------------------------------------------------------------------

    def _tell(self, report: Report) -> None:
        self._reports.write(msgspec.json.encode(report) + b"\n")

    def _report(self) -> None:
        now = time.monotonic()
        if now >= self._report_at:
            self._report_at = now + REPORT_S
            self._report_counts()

    def _report_counts(self) -> None:
        counts, meter = self._requests.counts, self._engine.meter
        counts.compared = self._blocks.compared
        counts.misses = {reason.value: count for reason, count in meter.misses.items()}
        for detail in meter.details:
            print(f"missed: {detail}", file=sys.stderr)
        meter.details.clear()
        while self._alarms < meter.misses[MissReason.CORRUPTED]:
            # No fault of the schedule flips bytes.
            self._alarms += 1
            self._tell(Wrong("a check found wrong bytes; see the log"))
        self._tell(counts)

    # --- orders ------------------------------------------------------------------------

    def _take_orders(self) -> None:
        while select.select([0], [], [], 0)[0]:
            read = os.read(0, 1 << 16)
            if not read:
                self._left = True
                return
            *lines, self._unread = (self._unread + read).split(b"\n")
            for line in lines:
                self._obey(self._decode(line))

    def _obey(self, order: Order) -> None:
        match order:
            case KillHelper(helper, aim_s):
                self._aim(aim_s, lambda: _signal(self._helper(helper), signal.SIGKILL))
            case StopHelper(helper, for_s, aim_s):
                self._aim(aim_s, lambda: self._stop(helper, for_s))
            case Abandon():
                self._abandoning = order
            case Fill(blocks):
                self._fill(blocks)
            case Abort(aim_s):
                self._aim(aim_s, self._requests.abort)
            case Reset(weights):
                self._reset(weights)
            case Verify():
                self._check = Verifying(self._start, order, self._blocks, self._requests)
            case Settle():
                self._pulling = False
                self._check = Settling(order, self._engine, self._blocks, self._requests)
            case Resume():
                self._pulling = True
            case Leave():
                self._report_counts()
                self._left = True

    def _helper(self, name: str) -> HelperProcess | None:
        generation = self._engine.supervisor.generation
        return getattr(generation, name) if generation is not None else None

    def _stop(self, name: str, for_s: float) -> None:
        helper = self._helper(name)
        _signal(helper, signal.SIGSTOP)
        self._later(for_s, lambda: _signal(helper, signal.SIGCONT))

    def _abandon(self, order: Abandon) -> None:
        """A pull has just begun; wait for its READ, which no timer would hit."""
        reads = self._engine.ledger.counters("initiator")
        before, until = reads.read()["reads"], time.monotonic() + ABANDONED_S
        while reads.read()["reads"] == before:
            if time.monotonic() > until:
                return
        time.sleep(order.aim_s)
        self._stop("initiator", max(order.for_s, 2 * ABANDONED_S))
        self._later(ABANDONED_S / 2, self._requests.abort)
        self._later(ABANDONED_S, lambda: self._fill(ABANDONED_BLOCKS))

    def _fill(self, blocks: int) -> None:
        self._fills += 1
        self._filled = make_keys(f"{self._start.tag}/{self._fills}", blocks)
        self._blocks.store_now(self._filled)

    def _reset(self, weights: int) -> None:
        """As the manager does it: the content first, then the blocks, then the epoch."""
        engine = self._engine
        if weights < engine.weights:
            return
        engine.ledger.set_content(b"")
        engine.ledger.drop_ready()
        engine.ledger.set_epoch(engine.ledger.epoch + 1)
        engine.weights = weights
        self._resets += 1
        number = self._resets
        # The workers look some steps later, unless there is another reset before.
        self._later(
            self._choices.uniform(0, LOOK_S),
            lambda: engine.know() if number == self._resets else None,
        )
        self._engine.pulls.drain()
        self._engine.pulls.cache_reset()
        self._blocks.reset()
        self._engine.ledger.reclaim()

    # --- time --------------------------------------------------------------------------

    def _aim(self, aim_s: float | None, act: Act) -> None:
        if aim_s is None:
            act()
        else:
            self._aimed.append((aim_s, act))

    def _later(self, after_s: float, act: Act) -> None:
        self._timers.append((time.monotonic() + after_s, act))

    def _act(self) -> None:
        now = time.monotonic()
        due = [act for at, act in self._timers if at <= now]
        self._timers = [(at, act) for at, act in self._timers if at > now]
        for act in due:
            act()
        report = self._check.step() if self._check is not None else None
        if report is not None:
            self._check = None
            self._tell(report)


def _signal(helper: HelperProcess | None, number: signal.Signals) -> None:
    if helper is not None:
        # Reaped a moment ago, it has no pidfd any more.
        with contextlib.suppress(OSError):
            helper.signal(number)


def main() -> None:
    # The runner decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Helpers inherit standard output, and UCX writes its warnings there.
    reports = FileIO(os.dup(1), "wb")
    os.dup2(2, 1)
    start = msgspec.json.decode(sys.argv[1], type=Start)
    peers = tuple(
        PeerAddress(name, address.rpartition(":")[0], int(address.rpartition(":")[2]))
        for name, address in start.sources.items()
    )
    engine = ChaosStandIn(
        start.name,
        blocks=BLOCKS,
        block_bytes=BLOCK_BYTES,
        host=start.host,
        port=start.port,
        peers=peers,
        deadline_s=DEADLINE_S,
        head_start=HEAD_START,
        integrity=start.integrity,
    )
    engine.weights = start.weights
    engine.know()
    engine.supervisor.start()
    try:
        Life(start, engine, reports).run()
    finally:
        engine.supervisor.shutdown()


if __name__ == "__main__":
    main()
