"""What one engine looks into when the faults are over: who is reached, and what is left."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from mpkv.engine.helper_process import HelperProcess
from tests.chaos.blocks import Blocks, ChaosStandIn
from tests.chaos.orders import HELPERS, Settle, Settled, Start, Verified, Verify
from tests.chaos.requests import Requests
from tests.support.standin import make_keys

VERIFIED_KEYS = 8
AGAIN_S = 0.1
# Helpers that came up only just now still open what they need.
SETTLED_FOR_S = 1.0


class Verifying:
    """Pulls fresh keys of every other engine until each pull has worked once."""

    def __init__(self, start: Start, order: Verify, blocks: Blocks, requests: Requests) -> None:
        self._order = order
        self._blocks = blocks
        self._requests = requests
        self._until = time.monotonic() + order.limit_s
        self._missing = set(start.sources)
        self._next_at = dict.fromkeys(start.sources, 0.0)
        self._own = self._keys(start.name)

    def step(self) -> Verified | None:
        """Try again; the report once it is over."""
        now = time.monotonic()
        # Whether others reach this engine is asked here, not how long it keeps a block.
        self._blocks.store_now(self._blocks.missing(self._own))
        for source in self._missing:
            if now >= self._next_at[source]:
                self._next_at[source] = float("inf")
                self._requests.pull(source, self._keys(source), self._ended(source))
        if self._missing and now < self._until:
            return None
        return Verified(sorted(self._missing))

    def _keys(self, owner: str) -> list[bytes]:
        return make_keys(f"verify {self._order.round}/{owner}", VERIFIED_KEYS)

    def _ended(self, source: str) -> Callable[[bool], None]:
        def ended(found: bool) -> None:
            if found:
                self._missing.discard(source)
            else:
                self._next_at[source] = time.monotonic() + AGAIN_S

        return ended


class Settling:
    """Waits until nothing is under way, then counts what there is."""

    def __init__(
        self, order: Settle, engine: ChaosStandIn, blocks: Blocks, requests: Requests
    ) -> None:
        self._engine = engine
        self._blocks = blocks
        self._requests = requests
        self._until = time.monotonic() + order.limit_s
        self._since: float | None = None

    def step(self) -> Settled | None:
        """Look again; the report once it is over."""
        now = time.monotonic()
        endless, leaked = self._endless(), self._leaked()
        if endless or leaked:
            self._since = None
            if now < self._until:
                return None
        elif self._since is None:
            self._since = now
        if self._since is not None and now < self._since + SETTLED_FOR_S:
            return None
        return Settled(endless, leaked, self._each("fd"), self._each("task"))

    def _endless(self) -> list[str]:
        found = [] if self._requests.idle and self._blocks.idle else ["requests of the engine"]
        pulls = self._engine.pulls
        for name, book in (("open", pulls.records.open), ("held", pulls.records.held)):
            found += [f"pull {number} is {name}" for number in book]
        return found + [f"a pull for {pull.asker.request} waits" for pull in pulls.turns]

    def _leaked(self) -> list[str]:
        pulls = self._engine.pulls
        counts = self._engine.ledger.counts()
        counts["landing"] -= pulls.early.stock
        states = ("landing", "filling", "draining", "control_pins", "engine_pins")
        found = [f"{counts[name]} {name}" for name in states if counts[name]]
        if pulls.claims.taken:
            found.append(f"{pulls.claims.taken} slots claimed")
        for name, book in (
            ("requests", pulls._by_request),
            ("adopted", pulls._split),
            ("coming", pulls.coming._pulls),
            ("unclaimed", pulls.early._unclaimed),
        ):
            if book:
                found.append(f"{len(book)} {name}")
        helpers = self._helpers()
        found += [f"no {name}" for name in HELPERS if name not in helpers]
        known = {helper.pid for helper in helpers.values()}
        return found + [f"child process {pid}" for pid in _children() - known]

    def _helpers(self) -> dict[str, HelperProcess]:
        generation = self._engine.supervisor.generation
        found = {name: getattr(generation, name, None) for name in HELPERS}
        return {name: helper for name, helper in found.items() if helper and helper.alive()}

    def _each(self, kind: str) -> dict[str, int]:
        """How many entries `/proc/PID/<kind>` has, by role."""
        pids = {name: helper.pid for name, helper in self._helpers().items()}
        pids["engine"] = os.getpid()
        return {name: len(os.listdir(f"/proc/{pid}/{kind}")) for name, pid in pids.items()}


def _children() -> set[int]:
    """Zombies included."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        found.update(int(pid) for pid in (task / "children").read_text().split())
    return found
