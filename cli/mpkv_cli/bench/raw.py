"""Bare NIXL READs between two worker processes, and what UCX moves them by."""

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from mpkv_cli.bench.worker import Worker

# Blocks per post in the pattern that splits a READ: what fits the caches of these machines.
SPLIT_POST = 16


class RawReads:
    """A source of `blocks` blocks, and a reader of as many unless it is to have
    `reader_blocks`. Use as a context manager."""

    def __init__(self, blocks: int, block_bytes: int, reader_blocks: int = 0) -> None:
        self._stack = ExitStack()
        with ExitStack() as undo:
            source = undo.enter_context(Worker("nixl"))
            self.reader = undo.enter_context(Worker("nixl"))
            exposed = source.call(
                "open", name="raw-source", blocks=blocks, block_bytes=block_bytes, progress=True
            )
            self.reader.call(
                "open",
                name="raw-reader",
                blocks=reader_blocks or blocks,
                block_bytes=block_bytes,
                progress=False,
            )
            self.reader.call("connect", **exposed)
            self._stack = undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def patterns(self, count: int, repeats: int) -> dict[str, list[float]]:
        """Seconds of `repeats` READs of `count` blocks, by how they are asked for."""
        call = self.reader.call
        found = {
            "one post, in order": call("read_run", count=count, post=count, repeats=repeats),
            "one post, at random": call("read_random", count=count, repeats=repeats),
            "as one piece": call("read_merged", count=count, repeats=repeats),
        }
        if count > SPLIT_POST:
            name = f"posts of {SPLIT_POST}, in order"
            found[name] = call("read_run", count=count, post=SPLIT_POST, repeats=repeats)
        return found

    def transport(self) -> str:
        """What UCX reports to use for large READs; some READ must have been done."""
        config = _config_of_reads(self.reader.log())
        return f"NIXL READs over UCX by {config}" if config else "NIXL over UCX"


def read_transport() -> str:
    """By what NIXL READs between processes of this machine."""
    with RawReads(blocks=1, block_bytes=1 << 20) as raw:
        raw.reader.call("read_run", count=1, post=1, repeats=1)
        return raw.transport()


def _config_of_reads(log: str) -> str:
    """The last column of the row for the longest READs, in the table that UCX logs."""
    lines = iter(log.splitlines())
    for line in lines:
        if "remote memory read" in line:
            for row in lines:
                if "..inf" in row:
                    return row.split("|")[-2].strip()
    return ""
