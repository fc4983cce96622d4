"""A source that answers a destination whatever it likes."""

import contextlib

import msgspec
from hypothesis import strategies as st
from msgspec import Struct, structs

from mpkv.control.network.wire import (
    PROTOCOL,
    Ask,
    Busy,
    Confirm,
    Confirmed,
    Denial,
    Denied,
    Difference,
    Grant,
    Hello,
    Loss,
    NotConfirmed,
    Pong,
    Refuse,
    Welcome,
    decode_to_destination,
    decode_to_source,
    pack_runs,
)
from mpkv.errors import WireRefused
from mpkv.messages import Pulled
from tests.control.common import BLOCK_BYTES, CONTENT, KEY_SIZE, keys, u32, wait_for
from tests.control.harness import Plane
from tests.control.raw import RawSource, closing
from tests.fuzz.explore import explore
from tests.fuzz.shapes import bytes_of, numbers, packed, texts

WANTED = keys("wanted", 4)
DEADLINE_S = 0.15
GROWTH_BYTES = 64 << 20

# Stand for the latest ask and for its lease; replaced just before a message is sent.
ASK, LEASE = 1 << 40, 1 << 41

_asks = st.sampled_from([ASK, ASK, ASK, ASK + 1, ASK - 1]) | numbers
_leases = st.sampled_from([LEASE, LEASE, LEASE, LEASE + 1]) | numbers
_runs = st.sampled_from([b"", (0).to_bytes(4, "little") + (4).to_bytes(4, "little")]) | packed(4, 4)
_blocks = st.sampled_from([b"", bytes(16), bytes(8)]) | packed(4, 64)
_instances = st.sampled_from(["a source", "a source", "a source", "its next life"]) | texts
_differing = st.lists(st.builds(Difference, texts, texts, texts), max_size=2).map(tuple)
_sizes = st.sampled_from([BLOCK_BYTES, BLOCK_BYTES, 4097, 0, -1, 1 << 40])
# Well-formed and untrue: of keys that were not asked for, twice, or in no order.
_untrue = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=4).map(
    lambda runs: Grant(ASK, LEASE, pack_runs(runs), bytes(4 * sum(n for _, n in runs)), CONTENT)
)
_messages: st.SearchStrategy[Struct] = st.one_of(
    st.builds(
        Welcome, _instances, texts, texts, st.binary(max_size=40), numbers,
        st.sampled_from([64, 1, 0, 1 << 31]), _sizes, st.just(0) | numbers,
    ),
    st.builds(Refuse, _instances, texts, _differing, texts),
    st.builds(Busy, _instances, texts),
    st.builds(Grant, _asks, _leases, _runs, _blocks, st.just(0) | numbers),
    _untrue,
    st.builds(Denied, _instances, _asks, st.sampled_from(Denial), texts),
    st.builds(Confirmed, _asks, _leases, st.just(b"") | packed(8, 4)),
    st.builds(NotConfirmed, _asks, _leases, st.sampled_from(Loss)),
    st.builds(Pong, _instances, numbers),
)  # fmt: skip
_welcome = Welcome("a source", "n", "a source.target", b"md", 0, 64, BLOCK_BYTES, CONTENT)
Answers = list[Struct | bytes | None]

_behave = st.none()
_answers: st.SearchStrategy[Answers] = st.lists(
    st.one_of(_behave, _messages, bytes_of(_messages)), max_size=4
)
# What each message of the destination is answered with, in order; after that the source behaves.
_scripts: st.SearchStrategy[list[Answers]] = st.one_of(
    st.lists(_answers, max_size=6), _untrue.map(lambda grant: [[None], [grant]])
)


class Hostile:
    """One source, for one pull."""

    def __init__(self, raw: RawSource, script: list[Answers]) -> None:
        self._raw = raw
        self._script = script[::-1]
        self._ask = 0
        self.confirmed: set[tuple[int, int]] = set()

    def pump(self) -> None:
        while self._raw.socket.poll(1):
            route, _, body = self._raw.socket.recv_multipart()
            message = decode_to_source(body, KEY_SIZE)
            if isinstance(message, Ask):
                self._ask = message.ask
            for answer in self._script.pop() if self._script else [None]:
                self._send(route, self._good(message) if answer is None else answer)

    def _good(self, message: Struct) -> Struct:
        match message:
            case Hello():
                return _welcome
            case Ask():
                runs = (0).to_bytes(4, "little") + len(WANTED).to_bytes(4, "little")
                return Grant(ASK, LEASE, runs, bytes(4 * len(WANTED)), CONTENT)
            case Confirm():
                return Confirmed(message.ask, message.lease)
        return Pong("a source", 1)

    def _send(self, route: bytes, answer: Struct | bytes) -> None:
        body = (
            msgspec.msgpack.encode(self._placed(answer)) if isinstance(answer, Struct) else answer
        )
        with contextlib.suppress(WireRefused):
            sent = decode_to_destination(body)
            if isinstance(sent, Confirmed):
                self.confirmed.add((sent.ask, sent.lease))
        self._raw.socket.send_multipart([route, PROTOCOL, body])

    def _placed(self, answer: Struct) -> Struct:
        """With the numbers that the latest ask has in place of ASK and LEASE."""
        places = {
            name: getattr(answer, name) - base + self._ask
            for name, base in (("ask", ASK), ("lease", LEASE))
            if abs(getattr(answer, name, 0) - base) <= 1
        }
        return structs.replace(answer, **{k: max(v, 0) for k, v in places.items()})


def _examine(plane: Plane, script: list[Answers]) -> None:
    with closing(RawSource()) as raw:
        source = Hostile(raw, script)
        pull = plane.pull(raw.address, WANTED)

        def ended() -> bool:
            source.pump()
            return plane.ended(pull)

        wait_for(ended, f"the end of pull {pull}; log:\n{plane.log()[-3000:]}")
        (answer,) = plane.answers(pull)
        if isinstance(answer, Pulled):
            # The last ask is the one that was granted, and somebody must have confirmed it.
            assert source.confirmed, "bytes count that nobody has confirmed"
            indexes = u32(answer.indexes)
            assert indexes == sorted(set(indexes))
            assert set(indexes) <= set(range(len(WANTED)))
            assert answer.slots == plane.slots(pull)[: 8 * len(indexes)]
        plane.records.clear()
    assert plane.process.poll() is None, plane.log()[-3000:]
    assert not plane.count("dropped_by_fault"), plane.log()[-3000:]


def run(seconds: float, seed: int) -> int:
    with Plane("destination", deadline_s=DEADLINE_S) as plane:
        plane.wait_ready()
        before = plane.resident_bytes()
        examined = explore(lambda script: _examine(plane, script), _scripts, seconds, seed)
        assert plane.resident_bytes() < before + GROWTH_BYTES
        _examine(plane, [])
        wait_for(lambda: plane.ledger.counts()["landing"] == 0, "all slots to be given back")
    return examined
