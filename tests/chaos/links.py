"""TCP from one engine to another by way of the runner, which can cut and freeze it."""

import asyncio
import contextlib

CHUNK = 1 << 16


class Link:
    """Listens on `port` and passes everything on to `target`."""

    def __init__(self, target: tuple[str, int], port: int) -> None:
        self.port = port
        self._target = target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    def cut(self) -> None:
        """End every connection at once, in the middle of whatever it carries."""
        for writer in self._writers:
            writer.transport.abort()

    async def freeze(self, for_s: float) -> None:
        """Pass nothing on for a while; no connection ends."""
        self._flows.clear()
        await asyncio.sleep(for_s)
        self._flows.set()

    async def refuse(self, for_s: float) -> None:
        """Cut, and let nothing connect for a while."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        self.cut()
        await asyncio.sleep(for_s)
        await self.open()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            onward = await asyncio.open_connection(*self._target)
        except OSError:
            self._end(writer)
            return
        self._writers.add(onward[1])
        for pair in ((reader, onward[1]), (onward[0], writer)):
            task = asyncio.create_task(self._pass_on(*pair))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        self._end(writer)

    def _end(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.close()
