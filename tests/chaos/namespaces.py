"""Engines on hosts of their own: network namespaces on one bridge, UCX over TCP.

A partition is real here: packets of requests, READs and confirmations are all lost. Needs
root; touches nothing outside of namespaces that it makes and removes.
"""

import asyncio
import os
import shutil
from collections.abc import Sequence
from subprocess import CalledProcessError

PORT = 7710
# Not in use anywhere: it exists inside the namespaces only.
SUBNET = "10.213.77"
# Nobody's; what is sent there is lost without a word.
NOWHERE = "02:00:00:00:00:01"
# A shorter one would be over before anybody sends.
SHORTEST_S = 0.05


class Namespaces:
    """One namespace per engine and one for the bridge between them."""

    def __init__(self, engines: Sequence[str]) -> None:
        self._prefix = f"mpkv-{os.getpid()}"
        self._hosts = {name: f"{SUBNET}.{n}" for n, name in enumerate(engines, 1)}
        self._hub = f"{self._prefix}-hub"
        self._made: list[str] = []
        self.ports = dict.fromkeys(engines, PORT)

    @staticmethod
    def missing() -> str:
        """What this machine lacks for it; "" if nothing."""
        if os.geteuid() != 0:
            return "HOSTS=netns makes network namespaces and so needs root"
        return "" if shutil.which("ip") else "HOSTS=netns needs the `ip` command (iproute2)"

    def host(self, engine: str) -> str:
        return self._hosts[engine]

    def command(self, engine: str) -> list[str]:
        return ["ip", "netns", "exec", self._of(engine), "env", "UCX_TLS=tcp,self"]

    def sources(self, engine: str) -> dict[str, str]:
        return {name: f"{host}:{PORT}" for name, host in self._hosts.items() if name != engine}

    async def open(self) -> None:
        await self._make(self._hub)
        await _ip("-n", self._hub, "link", "add", "bridge", "type", "bridge")
        await _ip("-n", self._hub, "link", "set", "bridge", "up")
        for engine, host in self._hosts.items():
            here = self._of(engine)
            await self._make(here)
            peer = ("peer", "name", "eth0", "netns", here)
            await _ip("-n", self._hub, "link", "add", engine, "type", "veth", *peer)
            await _ip("-n", self._hub, "link", "set", engine, "master", "bridge", "up")
            await _ip("-n", here, "address", "add", f"{host}/24", "dev", "eth0")
            await _ip("-n", here, "link", "set", "eth0", "up")
            await _ip("-n", here, "link", "set", "lo", "up")

    async def close(self) -> None:
        for name in self._made:
            await _ip("netns", "delete", name)

    async def cut(self, here: str, there: str, for_s: float) -> None:
        """Nobody reaches `here`, nor the other way round."""
        await _ip("-n", self._hub, "link", "set", here, "down")
        await asyncio.sleep(max(for_s, SHORTEST_S))
        await _ip("-n", self._hub, "link", "set", here, "up")

    async def freeze(self, here: str, there: str, for_s: float) -> None:
        """What `here` sends to `there` is lost; the other way all is well."""
        neighbour = (self._hosts[there], "dev", "eth0")
        lost = ("lladdr", NOWHERE, "nud", "permanent")
        await _ip("-n", self._of(here), "neighbour", "replace", *neighbour, *lost)
        await asyncio.sleep(max(for_s, SHORTEST_S))
        await _ip("-n", self._of(here), "neighbour", "flush", "to", *neighbour, "nud", "permanent")

    async def refuse(self, here: str, there: str, for_s: float) -> None:
        """`here` has no way to `there`, and is told so at once."""
        way, host = "unreachable", self._hosts[there]
        await _ip("-n", self._of(here), "route", "replace", way, host)
        await asyncio.sleep(max(for_s, SHORTEST_S))
        # Unlike a deletion, this is no error if an overlapping fault has done it already.
        await _ip("-n", self._of(here), "route", "flush", "type", way, "to", "exact", host)

    def _of(self, engine: str) -> str:
        return f"{self._prefix}-{engine}"

    async def _make(self, name: str) -> None:
        await _ip("netns", "add", name)
        self._made.append(name)


async def _ip(*arguments: str) -> None:
    process = await asyncio.create_subprocess_exec("ip", *arguments)
    if await process.wait():
        raise CalledProcessError(process.returncode or 0, ["ip", *arguments])
