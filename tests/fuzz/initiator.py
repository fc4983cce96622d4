"""A control plane that tells a real initiator whatever it likes, beside a real target."""

import contextlib

from hypothesis import strategies as st
from msgspec import Struct

from mpkv.messages import AddPeer, Read, RemovePeer
from tests.fuzz.explore import explore
from tests.fuzz.shapes import bytes_of, numbers, packed, texts
from tests.registration.harness import Initiator, Target

BLOCKS = 64
BLOCK_BYTES = 65536
# Above what the harness counts its own READs by.
FIRST_READ = 1 << 32


def _sequences(target: str) -> st.SearchStrategy[list[bytes]]:
    peers = st.just("another") | texts
    read = st.builds(
        Read,
        st.integers(FIRST_READ, FIRST_READ + 100),
        st.just(target) | peers,
        packed(4, BLOCKS + 4),
        packed(4, BLOCKS + 4),
    )
    # NIXL's own parser of metadata is not asked here: what it does not refuse may end the process.
    add = st.builds(
        AddPeer, peers, peers, st.just(b""), numbers, numbers, st.just(BLOCK_BYTES) | numbers
    )
    records: st.SearchStrategy[Struct] = st.one_of(read, read, st.builds(RemovePeer, peers), add)
    return st.lists(bytes_of(records), max_size=10)


def run(seconds: float, seed: int) -> int:
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(contextlib.closing(Target(BLOCKS, BLOCK_BYTES)))
        initiator = stack.enter_context(contextlib.closing(Initiator(BLOCKS, BLOCK_BYTES)))
        initiator.add(target)

        def examine(records: list[bytes]) -> None:
            for record in records:
                initiator.push(record)
            # Answered in turn: everything before it has been handled.
            initiator.fetched(target, [3, 5, 7], [2, 4, 6])
            initiator.results.clear()

        return explore(examine, _sequences(target.instance), seconds, seed)
