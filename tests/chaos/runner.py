"""Starts the engines, breaks things as scheduled, and judges when all is quiet again."""

import asyncio
import random
import signal
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from mpkv.cluster.settings import Integrity
from tests.chaos.leaks import Machine, more_than
from tests.chaos.member import Member
from tests.chaos.network import Network
from tests.chaos.orders import (
    BLOCKS,
    Abandon,
    Abort,
    Fill,
    KillHelper,
    Order,
    Reset,
    Resume,
    Settle,
    Settled,
    Start,
    StopHelper,
    Verify,
)
from tests.chaos.schedule import Fault, schedule
from tests.chaos.tally import Tally

ENGINES = ("ada", "bob", "cleo")
PROGRESS_S = 5.0
# About how long a READ takes.
READ_S = 0.001
VERIFY_S = 40.0
SETTLE_S = 40.0


class Runner:
    def __init__(
        self,
        seed: int,
        faults: int,
        pause_s: float,
        network: Network,
        integrity: Mapping[str, Integrity],
        logs: Path,
    ):
        self.tally = Tally()
        self._seed = seed
        self._wanted = faults
        self._pause_s = pause_s
        self._network = network
        self._weights = 0
        self._members = {
            name: Member(
                Start(
                    name,
                    tag="",
                    host=network.host(name),
                    port=network.ports[name],
                    sources=network.sources(name),
                    weights=0,
                    pulling=False,
                    integrity=integrity[name],
                ),
                network.command(name),
                seed,
                self.tally,
                logs / f"{name}.log",
            )
            for name in ENGINES
        }
        # Faults that have not ended yet.
        self._lasting = asyncio.TaskGroup()

    async def run(self) -> None:
        before = Machine.now()
        await self._network.open()
        progress = asyncio.create_task(self._print_progress())
        try:
            for member in self._members.values():
                await member.start(self._weights, pulling=False)
            baseline = await self._quiet(0)
            if self.tally.clean:
                for member in self._members.values():
                    member.send(Resume())
                async with asyncio.TaskGroup() as self._lasting:
                    await self._break_things()
                self.tally.leaks += more_than(baseline, await self._quiet(1))
        finally:
            progress.cancel()
            for member in self._members.values():
                await member.leave()
            await self._network.close()
        self.tally.leaks += before.new()

    async def _print_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            print(self.tally.progress(), flush=True)

    async def _quiet(self, number: int) -> dict[str, Settled]:
        """Nothing new; everybody reaches everybody; nothing is left under way."""
        members = self._members.values()
        for member in members:
            member.send(Settle(SETTLE_S))
        verified = await asyncio.gather(*(m.verify(Verify(number, VERIFY_S)) for m in members))
        for member, answer in zip(members, verified, strict=True):
            failed = ["anybody"] if answer is None else answer.failed
            self.tally.apart += [f"{member.name} cannot pull from {name}" for name in failed]
        settled = await asyncio.gather(*(m.settle(Settle(SETTLE_S)) for m in members))
        found = {}
        for member, report in zip(members, settled, strict=True):
            if report is None:
                self.tally.endless.append(f"{member.name} does not settle")
                continue
            found[member.name] = report
            self.tally.endless += [f"{member.name}: {text}" for text in report.endless]
            self.tally.leaks += [f"{member.name}: {text}" for text in report.leaked]
        return found

    # --- faults --------------------------------------------------------------------------

    async def _break_things(self) -> None:
        faults = schedule(self._seed, ENGINES, self._pause_s)
        while self.tally.faults.total() < self._wanted:
            fault = next(faults)
            await asyncio.sleep(fault.after_s)
            if self._strike(fault):
                self.tally.faults[fault.kind] += 1

    def _strike(self, fault: Fault) -> bool:
        """False if the fault finds nothing to strike."""
        member = self._members[fault.engine]
        verb, _, what = fault.kind.partition(" ")
        if what == "engine":
            return self._strike_engine(verb, member, fault.for_s)
        if what == "link":
            breaks = getattr(self._network, verb)
            return self._lasts(breaks(fault.engine, fault.other, fault.for_s))
        if what == "caches":
            self._weights += 1
            return self._lasts(self._reset(self._weights, fault.share))
        if what == "one cache":
            # A reset alone: it goes on with the weights that all have, or are to have.
            return member.send(Reset(self._weights))
        return member.send(_order(verb, what, fault))

    def _strike_engine(self, verb: str, member: Member, for_s: float) -> bool:
        if member.busy.locked():
            return False
        strike = {"kill": self._kill, "restart": self._restart, "stop": self._stop}[verb]
        return self._lasts(strike(member, for_s))

    def _lasts(self, fault: Coroutine[Any, Any, None]) -> bool:
        self._lasting.create_task(fault)
        return True

    async def _kill(self, member: Member, for_s: float) -> None:
        async with member.busy:
            await member.kill()
            await asyncio.sleep(for_s)
            await member.start(self._weights, pulling=True)

    async def _restart(self, member: Member, for_s: float) -> None:
        async with member.busy:
            await member.leave()
            await member.start(self._weights, pulling=True)

    async def _stop(self, member: Member, for_s: float) -> None:
        async with member.busy:
            member.signal(signal.SIGSTOP)
            await asyncio.sleep(for_s)
            member.signal(signal.SIGCONT)

    async def _reset(self, weights: int, spread_s: float) -> None:
        """Engines get new weights one after the other, in any order."""
        order = random.Random(f"{self._seed}/{weights}").sample(ENGINES, len(ENGINES))
        for name in order:
            self._members[name].send(Reset(weights))
            await asyncio.sleep(spread_s / len(order))


def _order(verb: str, what: str, fault: Fault) -> Order:
    match verb:
        case "kill":
            return KillHelper(what, fault.aim_s)
        case "stop":
            return StopHelper(what, fault.for_s, fault.aim_s)
        case "fill":
            return Fill(BLOCKS)
        case "evict":
            return Fill(1 + int(fault.share * BLOCKS / 4))
        case "abandon":
            return Abandon(fault.for_s, fault.share * READ_S)
    return Abort(fault.aim_s)
