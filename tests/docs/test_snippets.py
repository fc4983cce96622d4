"""The Python of the documents runs, with what it takes for granted stood in for."""

import os
from typing import Any

import pytest

from mpkv.memory import FILLING, Ledger, Ring
from tests.docs.pages import Block, all_pages, page

RINGS, LEDGER = page("mpkv/memory/README.md").blocks


class Over(Exception):
    """Ends a snippet that would go on for ever."""


class Names(dict[str, Any]):
    """What a snippet knows. Descriptors come from what the one side made to the other."""

    def __missing__(self, name: str) -> Any:
        made = {"ring_fd": "ring", "ledger_fd": "ledger"}
        if name not in made:
            raise KeyError(name)
        return self[made[name]].fd


def run(block: Block, names: Names) -> None:
    code = compile("\n" * (block.line - 1) + block.text, block.page, "exec")
    exec(code, {}, names)


def test_all_python_is_run_here() -> None:
    python = [block for each in all_pages() for block in each.blocks if block.language == "python"]
    assert python == [RINGS, LEDGER]


def test_a_record_crosses_a_ring() -> None:
    handled: list[bytes] = []

    class Poller:
        def poll(self, timeout: float) -> None:
            raise Over

    names = Names(
        Ring=Ring, os=os, handle=handled.append, poller=Poller(), timeout=1.0, drain=os.eventfd_read
    )
    with pytest.raises(Over):
        run(RINGS, names)
    assert handled == [b"record"]
    names["ring"].close()
    os.close(names["wake_fd"])


def test_blocks_are_published_and_pinned() -> None:
    keys = b"".join(bytes([n]) * 36 for n in range(3))
    names = Names(Ledger=Ledger, FILLING=FILLING, keys=keys)
    created: list[Ledger] = []
    made = Ledger.create

    class Kept(Ledger):
        __slots__ = ()

        @classmethod
        def create(cls, blocks: int, key_size: int) -> Any:
            created.append(made(blocks, key_size))
            return created[-1]

    names["Ledger"] = Kept
    run(LEDGER, names)
    assert names["results"] == bytes(3)
    assert len(names["slots"]) == 3 * 8
    (engine,) = created
    assert engine.counts()["ready"] == 3
    assert engine.counts()["control_pins"] == 0
    names["ledger"].close()
    engine.close()
