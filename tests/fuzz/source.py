"""Peers that send a source whatever they like."""

import zmq
from hypothesis import strategies as st
from msgspec import Struct, structs

from mpkv.cluster.settings import Integrity
from mpkv.control.checksums import checksum
from mpkv.control.network.wire import (
    PROTOCOL,
    Ask,
    Confirm,
    Confirmed,
    Grant,
    Hello,
    Ping,
    Pong,
    Release,
    ToDestination,
    ToSource,
    Welcome,
)
from mpkv.messages import KeyGroup
from tests.control.common import BLOCK_BYTES, COMPATIBILITY, CONTENT, keys, u32, wait_for
from tests.control.harness import Plane
from tests.control.raw import RawPeer, closing
from tests.fuzz.explore import explore
from tests.fuzz.shapes import bytes_of, groups, numbers, texts

INSTANCE = "the source"
HELD = keys("held", 6)
# Its tier is all zeros.
CHECKSUMS = checksum(bytes(BLOCK_BYTES)).to_bytes(8, "little") * len(HELD)
PEERS = 3
# More than what all peers together may make it remember.
GROWTH_BYTES = 64 << 20

_to = st.sampled_from([INSTANCE, INSTANCE, INSTANCE, "an earlier life"]) | texts
_instances = st.sampled_from([f"peer {number}" for number in range(PEERS)])
_addresses = st.sampled_from([f"10.0.0.{number}:1" for number in range(PEERS)]) | texts
_compatible = st.just(COMPATIBILITY) | texts.map(
    lambda text: structs.replace(COMPATIBILITY, model=text, hash_seed=text)
)
_lease_ms = st.sampled_from([0, 1, 20, 200, 1 << 40])
_contents = st.just(CONTENT) | st.binary(max_size=20)
_messages: st.SearchStrategy[Struct] = st.one_of(
    st.builds(Hello, _instances | texts, texts, _addresses, _compatible, _contents),
    st.builds(
        Ask, _to, numbers, groups(HELD), numbers, _lease_ms, _contents, st.sampled_from(Integrity)
    ),
    st.builds(Confirm, _to, numbers, numbers, _contents),
    st.builds(Release, _to, numbers),
    st.builds(Ping, _to, numbers),
)
_strays = st.sampled_from([PROTOCOL, b"", b"mpkv/1", b"mpkv/" + bytes(11)])
_frames = bytes_of(_messages).map(lambda body: [PROTOCOL, body]) | st.lists(
    _strays | st.binary(max_size=20), min_size=1, max_size=4
)
_sequences = st.lists(st.tuples(st.integers(0, PEERS - 1), _frames), max_size=20)


class Besieged:
    """A source among peers that send anything, and one that behaves."""

    def __init__(self, plane: Plane, good: RawPeer, peers: list[RawPeer]) -> None:
        self._plane = plane
        self._good = good
        self._peers = peers
        self._asks = 0
        plane.wait_ready()
        plane.store(HELD)
        self._say_hello()

    def examine(self, sequence: list[tuple[int, list[bytes]]]) -> None:
        for number, frames in sequence:
            self._peers[number].send_frames(frames)
        self.serves()
        for peer in self._peers:
            _read_all(peer)

    def serves(self) -> None:
        """Whether a peer that behaves gets what it asks for, as if nobody else were there."""
        self._asks += 1
        # One that was held up for long counts as gone.
        self._say_hello()
        groups = (KeyGroup(b"".join(HELD), 16, 0),)
        ask = Ask(INSTANCE, self._asks, groups, len(HELD), 5000, CONTENT, Integrity.FULL)
        grant = self._ask(ask)
        assert isinstance(grant, Grant), grant
        assert u32(grant.blocks) == [self._plane.ledger.find(key) for key in HELD]
        confirm = Confirm(INSTANCE, self._asks, grant.lease, CONTENT)
        assert self._ask(confirm) == Confirmed(self._asks, grant.lease, CHECKSUMS)
        assert self._plane.process.poll() is None
        assert not self._plane.count("dropped_by_fault"), self._plane.log()[-3000:]

    def _say_hello(self) -> None:
        hello = Hello(self._good.instance, "raw", "10.0.1.1:1", COMPATIBILITY, CONTENT)
        assert isinstance(self._ask(hello), Welcome)

    def _ask(self, message: ToSource) -> ToDestination:
        answer = self._good.ask(message)
        # The source looks whether those are still there that hold something.
        while isinstance(answer, Pong):
            answer = self._good.receive()
        return answer


def _read_all(peer: RawPeer) -> None:
    while peer.socket.poll(0):
        peer.socket.recv_multipart(zmq.NOBLOCK)


def run(seconds: float, seed: int) -> int:
    with Plane("source", instance=INSTANCE, blocks=4096) as plane:
        peers = [RawPeer(plane.address) for _ in range(PEERS)]
        with closing(RawPeer(plane.address, "good")) as good:
            try:
                besieged = Besieged(plane, good, peers)
                before = plane.resident_bytes()
                examined = explore(besieged.examine, _sequences, seconds, seed)
                assert plane.resident_bytes() < before + GROWTH_BYTES
                # Another life of each; what the earlier ones held is theirs no more.
                for number, peer in enumerate(peers):
                    peer.send(
                        Hello(f"the end {number}", "", f"10.0.2.{number}:1", COMPATIBILITY, CONTENT)
                    )
                besieged.serves()
                wait_for(lambda: plane.pins() == 0, "all pins to be given back")
            finally:
                for peer in peers:
                    peer.close()
    return examined
