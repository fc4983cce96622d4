"""How engines reach each other: through links that can be broken."""

import contextlib
import itertools
import random
import socket
from collections.abc import Sequence
from typing import Protocol

from tests.chaos.links import Link

# Below what the kernel gives to outgoing connections, which could take the port of an
# engine or link that is down for a moment.
PORTS = range(20_000, 32_000)
HOST = "127.0.0.1"


class Network(Protocol):
    """Each fault lasts `for_s`, if it lasts, and has been mended when the call returns."""

    @property
    def ports(self) -> dict[str, int]: ...
    def host(self, engine: str) -> str: ...

    def command(self, engine: str) -> list[str]:
        """What the command line of an engine begins with."""

    def sources(self, engine: str) -> dict[str, str]:
        """The addresses by which `engine` reaches the others."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def cut(self, here: str, there: str, for_s: float) -> None: ...
    async def freeze(self, here: str, there: str, for_s: float) -> None: ...
    async def refuse(self, here: str, there: str, for_s: float) -> None: ...


class Loopback:
    """All on one host; each engine reaches each other by a link of its own."""

    def __init__(self, engines: Sequence[str]) -> None:
        pairs = list(itertools.permutations(engines, 2))
        ports = free_ports(len(engines) + len(pairs))
        self.ports = {name: ports.pop() for name in engines}
        self._links = {
            (here, there): Link((HOST, self.ports[there]), ports.pop()) for here, there in pairs
        }

    def host(self, engine: str) -> str:
        return HOST

    def command(self, engine: str) -> list[str]:
        return []

    def sources(self, engine: str) -> dict[str, str]:
        return {
            there: f"{HOST}:{link.port}"
            for (here, there), link in self._links.items()
            if here == engine
        }

    async def open(self) -> None:
        for link in self._links.values():
            await link.open()

    async def close(self) -> None:
        for link in self._links.values():
            await link.close()

    async def cut(self, here: str, there: str, for_s: float) -> None:
        self._links[here, there].cut()

    async def freeze(self, here: str, there: str, for_s: float) -> None:
        await self._links[here, there].freeze(for_s)

    async def refuse(self, here: str, there: str, for_s: float) -> None:
        await self._links[here, there].refuse(for_s)


def free_ports(count: int) -> list[int]:
    free = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            free.append(port)
        if len(free) == count:
            break
    return free
