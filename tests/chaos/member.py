"""One engine of the fleet as the runner sees it, through all of its lives."""

import asyncio
import os
import signal
import sys
import uuid
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import msgspec

from tests.chaos.orders import (
    Counts,
    Leave,
    Order,
    Report,
    Settle,
    Settled,
    Start,
    Verified,
    Verify,
)
from tests.chaos.tally import Tally

# Inherited by all helpers of one life of one engine, so that they are known when it is dead.
LIFE = "MPKV_CHAOS_LIFE"
# Other runs, of the same seed too, are nobody's of ours.
RUN = uuid.uuid4().hex
# Two seconds is what users are promised; the rest is for a loaded machine.
ORPHANS_S = 5.0
LEAVE_S = 30.0
REPORT_MARGIN_S = 20.0


class Member:
    def __init__(
        self, start: Start, command: list[str], seed: int, tally: Tally, log: Path
    ) -> None:
        """`command` is what the command line begins with; choices follow from `seed`."""
        self.name = start.name
        # Held by whoever stops, ends or starts the engine.
        self.busy = asyncio.Lock()
        self._start = start
        self._command = command
        self._seed = seed
        self._tally = tally
        self._log = log
        self._lives = 0
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._answer: asyncio.Future[Report] | None = None
        self._decode = msgspec.json.Decoder(Report).decode

    async def start(self, weights: int, *, pulling: bool) -> None:
        self._lives += 1
        tag = self._tag()
        start = msgspec.structs.replace(self._start, tag=tag, weights=weights, pulling=pulling)
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                sys.executable,
                "-m",
                "tests.chaos.engine",
                msgspec.json.encode(start).decode(),
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                env={**os.environ, LIFE: f"{RUN}/{tag}"},
            )
        self._reading = asyncio.create_task(self._read(self._process))

    def send(self, order: Order) -> bool:
        """False if there is no engine to hear it."""
        process = self._process
        if process is None or process.returncode is not None or process.stdin is None:
            return False
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        return True

    def signal(self, number: signal.Signals) -> bool:
        process = self._process
        if process is None or process.returncode is not None:
            return False
        process.send_signal(number)
        return True

    async def kill(self) -> None:
        """kill -9, and see its helpers leave by themselves."""
        self.signal(signal.SIGKILL)
        await self._ended()
        # A stopped process cannot leave.
        for pid in self._helpers():
            _signal(pid, signal.SIGCONT)
        await self._watch_helpers_leave()

    async def leave(self) -> None:
        """A clean end."""
        self.send(Leave())
        try:
            await asyncio.wait_for(self._ended(), LEAVE_S)
        except TimeoutError:
            self._tally.leaks.append(f"{self.name} does not leave within {LEAVE_S:g} s")
            await self.kill()
        await self._watch_helpers_leave()

    async def verify(self, order: Verify) -> Verified | None:
        answer = await self._ask(order, order.limit_s)
        return answer if isinstance(answer, Verified) else None

    async def settle(self, order: Settle) -> Settled | None:
        answer = await self._ask(order, order.limit_s)
        return answer if isinstance(answer, Settled) else None

    async def _ask(self, order: Verify | Settle, limit_s: float) -> Report | None:
        self._answer = asyncio.get_running_loop().create_future()
        if not self.send(order):
            return None
        try:
            return await asyncio.wait_for(self._answer, limit_s + REPORT_MARGIN_S)
        except TimeoutError:
            return None

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None
        latest = Counts()
        while line := await process.stdout.readline():
            if not line.endswith(b"\n"):
                break
            report = self._decode(line)
            if isinstance(report, Counts):
                self._tally.replace(latest, report)
                latest = report
            elif isinstance(report, Settled | Verified):
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(report)
            else:
                self._tally.found(self.name, report)

    async def _ended(self) -> None:
        if self._process is not None and self._reading is not None:
            code = await self._process.wait()
            await self._reading
            if code not in (0, -signal.SIGKILL):
                self._tally.leaks.append(f"{self.name} ended with {code}; see {self._log}")

    async def _watch_helpers_leave(self) -> None:
        until = asyncio.get_running_loop().time() + ORPHANS_S
        while left := self._helpers():
            if asyncio.get_running_loop().time() > until:
                self._tally.leaks += [f"process {pid} outlives {self.name}" for pid in left]
                for pid in left:
                    _signal(pid, signal.SIGKILL)
                return
            await asyncio.sleep(0.05)

    def _tag(self) -> str:
        return f"{self._seed}/{self.name}.{self._lives}"

    def _helpers(self) -> list[int]:
        """What has inherited the mark of the latest life and still runs."""
        mark = f"{LIFE}={RUN}/{self._tag()}\0".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                ours = entry.name.isdigit() and mark in (entry / "environ").read_bytes()
                if ours and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return found


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
