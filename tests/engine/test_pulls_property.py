"""Requests of all sizes at once, with sources that answer sooner or later: nobody waits for ever,
and nothing is moved twice."""

from collections import Counter, deque

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from mpkv.memory import FILLING
from mpkv.messages import CancelPull, KeyGroup, MissReason, Pull, PullFailed, ToControl
from tests.engine.book import BLOCKS, Book
from tests.support.standin import KEY_SIZE, make_keys

TRUNK = make_keys("trunk", 80)
# A prompt goes along the trunk, then its own way.
PROMPTS = [
    TRUNK[:shared] + make_keys(f"branch {number}", own)
    for number, (shared, own) in enumerate(
        [(5, 0), (5, 0), (12, 0), (8, 4), (0, 6), (0, 16), (30, 0), (20, 25), (70, 0), (0, 64)]
    )
]
_requests = st.integers(0, len(PROMPTS) - 1)
_steps = st.one_of(
    st.tuples(st.sampled_from(["start", "start", "begin", "end", "step"]), _requests),
    st.tuples(st.sampled_from(["part", "answer", "fail", "store"]), st.integers(1, 40)),
)


class Tried:
    """A book and its sources: `far:1` holds all prompts, `near:1` the first half of each."""

    def __init__(self, head_start: float) -> None:
        self.book = Book(head_start=head_start)
        self.open: deque[Pull] = deque()
        self.come: Counter[int] = Counter()
        self.started: dict[str, int] = {}
        self._begun: set[str] = set()
        self._failed = False

    def do(self, what: str, argument: int) -> None:
        if what in ("start", "begin") and f"r{argument}" not in self.started:
            self._start(argument, early=what == "begin")
        elif what == "end":
            self._end(f"r{argument}")
        elif what == "part" and self.open:
            self._answer(self.open[0], argument, more=True)
        elif what == "answer" and self.open:
            self._answer(self.open.popleft(), argument, more=False)
        elif what == "fail" and self.open:
            failed = PullFailed(self.open.popleft().pull, MissReason.TIMED_OUT, "", False)
            self.book.supervisor.say(failed)
        elif what == "store":
            slots = self.book.ledger.allocate(1, FILLING)
            if slots is not None:
                self.book.ledger.publish(slots[0], TRUNK[argument], False)
        self.turn()

    def turn(self) -> None:
        """A step of the scheduler, which hears of all that has begun."""
        pulls = self.book.pulls
        for request in sorted(self._begun):
            if not pulls.claim(request):
                self._begin_late(request)
        self._begun.clear()
        pulls.drain()
        pulls.start_waiting()
        for ring in (self.book.supervisor.early, self.book.supervisor.pulls):
            while (record := ring.pop()) is not None:
                self._hear(msgspec.msgpack.decode(record, type=ToControl))
        counts = self.book.ledger.counts()
        held = counts["landing"] - pulls.early.stock + counts["engine_pins"]
        assert held == pulls.claims.taken
        self._check_records()

    def settle(self) -> None:
        """All that is asked for comes, and requests that wait no longer end."""
        for _ in range(100):
            for pull in [*self.open]:
                self._answer(pull, BLOCKS, more=False)
            self.open.clear()
            self.turn()
            for request in [r for r in self.started if not self.book.pulls.pending(r)]:
                self._end(request)
            if not self.started and not self.open:
                return
        raise AssertionError(f"they wait for ever: {sorted(self.started)}")

    def _start(self, number: int, early: bool) -> None:
        request = f"r{number}"
        self.started[request] = number
        if early and self._pull(number, self.book.pulls.begin):
            self._begun.add(request)
        elif not early:
            self._pull(number, self.book.pulls.start)
        else:
            self._begin_late(request)

    def _begin_late(self, request: str) -> None:
        self._pull(self.started[request], self.book.pulls.start)

    def _pull(self, number: int, begin: object) -> bool:
        keys = PROMPTS[number]
        here = self.book.ledger.lookup_prefix(b"".join(keys))
        group = KeyGroup(b"".join(keys[here:]), 16, 0)
        peer = ("far:1", "near:1")[number % 2]
        assert callable(begin)
        return bool(group.keys and begin(f"r{number}", peer, (group,), b"".join(keys[:here])))

    def _end(self, request: str) -> None:
        if self.started.pop(request, None) is not None:
            self._begun.discard(request)
            if self.book.pulls.early.find(request) is not None:
                self.book.pulls.claim(request)
            self.book.pulls.looked_up(request)
            self.book.pulls.finished(request)

    def _hear(self, message: Pull | CancelPull) -> None:
        if isinstance(message, Pull):
            assert len(message.slots) // 8 == len(message.groups[0].keys) // KEY_SIZE
            self.open.append(message)
            return
        for pull in [pull for pull in self.open if pull.pull == message.pull]:
            self.open.remove(pull)
            self.book.supervisor.say(PullFailed(pull.pull, MissReason.ABORTED, "", False))

    def _answer(self, pull: Pull, count: int, more: bool) -> None:
        keys = pull.groups[0].keys
        size = len(keys) // KEY_SIZE
        holds = [keys[at * KEY_SIZE :][:KEY_SIZE] in self._held(pull.peer) for at in range(size)]
        most = [*holds, False].index(False)
        first = self.come[pull.pull]
        end = self.come[pull.pull] = min(first + count, most)
        self.book.supervisor.say_part(pull, first, end, more)

    def _held(self, peer: str) -> set[bytes]:
        return {
            key
            for prompt in PROMPTS
            for key in (prompt if peer == "far:1" else prompt[: len(prompt) // 2])
        }

    def _check_records(self) -> None:
        """What is on its way, and still waited for, is so once."""
        coming = self.book.pulls.coming
        keys = [
            record.keys[at * KEY_SIZE :][:KEY_SIZE]
            for record in self.book.pulls.records.open.values()
            if record.pull in coming._pulls
            for at, seen in enumerate(record.seen)
            if not seen
        ]
        assert len(keys) == len(set(keys)), "it comes twice"


@settings(max_examples=200, deadline=None)
@given(st.lists(_steps, max_size=60), st.sampled_from([0.0, 0.125]))
def test_requests_that_share_and_compete_all_end(
    steps: list[tuple[str, int]], head_start: float
) -> None:
    tried = Tried(head_start)
    for what, argument in steps:
        tried.do(what, argument)
    tried.settle()
    pulls = tried.book.pulls
    assert pulls.idle()
    assert pulls.claims.taken == 0
    assert len(pulls.coming) == 0
    counts = tried.book.ledger.counts()
    assert (counts["landing"], counts["engine_pins"]) == (pulls.early.stock, 0)
