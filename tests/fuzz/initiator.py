"""A control plane that tells a real initiator whatever it likes, beside a real target."""

import contextlib

from hypothesis import strategies as st
from msgspec import Struct

from mpkv.messages import AddPeer, Read, RemovePeer
from tests.fuzz.explore import explore
from tests.fuzz.shapes import bytes_of, numbers, packed, texts
from tests.registration.harness import Initiator, Target

_texts = st.sampled_from(["a peer", "another"]) | texts
# NIXL's own parser of metadata is not asked here: what it does not refuse may end the process.
_records: st.SearchStrategy[Struct] = st.one_of(
    st.builds(Read, st.integers(1 << 32, 1 << 33), _texts, packed(4, 80), packed(4, 80)),
    st.builds(RemovePeer, _texts),
    st.builds(AddPeer, _texts, _texts, st.just(b""), numbers, numbers, st.just(65536) | numbers),
)
_sequences = st.lists(bytes_of(_records), max_size=10)


def run(seconds: float, seed: int) -> int:
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(contextlib.closing(Target()))
        initiator = stack.enter_context(contextlib.closing(Initiator()))
        initiator.add(target)

        def examine(records: list[bytes]) -> None:
            for record in records:
                initiator.push(record)
            # Answered in turn: everything before it has been handled.
            initiator.fetched(target, [3, 5, 7], [2, 4, 6])
            initiator.results.clear()

        return explore(examine, _sequences, seconds, seed)
