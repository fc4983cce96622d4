"""Leases: what is pinned for whom, and when a confirmation is refused."""

from collections.abc import Iterator

import pytest

from mpkv.control.network.wire import MAX_LEASES, Loss
from mpkv.control.source.leases import REMEMBERED, WAITS_S, Leases
from mpkv.memory import FILLING, Ledger
from tests.control.common import CONTENT, KEY_SIZE, keys

BLOCKS = 64


class Desk:
    """Leases over a real ledger, with a target that the test can end."""

    def __init__(self) -> None:
        self.engine = Ledger.create(BLOCKS, KEY_SIZE)
        self.engine.set_content(CONTENT)
        self.control = Ledger.attach(self.engine.fd)
        self.target_alive = True
        self.keys = keys("a", BLOCKS)
        allocated = self.engine.allocate(BLOCKS, FILLING)
        assert allocated is not None
        self.engine.publish(allocated[0], b"".join(self.keys), False)
        self.ended: list[tuple[int, Loss]] = []
        self.leases = Leases(
            self.control,
            lambda: self.target_alive,
            self.control.counters("control"),
            lambda lease, loss: self.ended.append((lease.number, loss)),
        )

    def pin(self, *positions: int) -> bytes:
        return self.control.pin_many(b"".join(self.keys[at] for at in positions))

    def open(self, *positions: int, peer: str = "p", ask: int = 1, lease_ms: int = 1000) -> int:
        slots = self.pin(*positions)
        epoch, content = self.control.epoch, self.control.content
        return self.leases.open(peer, ask, slots, epoch, content, lease_ms, now=0.0).number

    def confirm(
        self,
        lease: int,
        *,
        peer: str = "p",
        ask: int = 1,
        content: bytes = CONTENT,
        now: float = 0.1,
    ) -> Loss | None:
        return self.leases.confirm(peer, ask, lease, content, now)

    def pins(self) -> int:
        return self.engine.counts()["control_pins"]


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.control.close()
    made.engine.close()


def test_confirmed_once_and_unpinned(desk: Desk) -> None:
    lease = desk.open(0, 1, 2)
    assert desk.pins() == 3
    assert desk.confirm(lease) is None
    assert desk.pins() == 0
    assert desk.confirm(lease) is Loss.UNKNOWN


def test_not_confirmed_after_expiry_seen_or_not(desk: Desk) -> None:
    unseen, seen = desk.open(0, ask=1), desk.open(1, ask=2)
    assert desk.confirm(unseen, now=1.0) is Loss.EXPIRED
    assert desk.leases.expire(0.999) == 1.0
    assert desk.pins() == 1
    assert desk.leases.expire(1.0) is None
    assert desk.pins() == 0
    assert desk.confirm(seen, ask=2, now=1.1) is Loss.EXPIRED
    assert len(desk.leases) == 0
    # The peer itself has ended the one, its clock the other.
    assert desk.ended == [(unseen, Loss.UNKNOWN), (seen, Loss.EXPIRED)]


def test_not_confirmed_after_a_reset(desk: Desk) -> None:
    before, dropped = (desk.open(at, ask=at) for at in (1, 3))
    desk.engine.set_epoch(1)
    assert desk.confirm(before, ask=1) is Loss.EPOCH
    # The old epoch's pins do not wait for their clocks.
    desk.leases.expire(0.2)
    assert desk.pins() == 0
    assert desk.confirm(dropped, ask=3) is Loss.EPOCH


@pytest.mark.parametrize("later", [b"", b"other weights   ", CONTENT])
def test_not_confirmed_unless_the_weights_are_known_and_the_same(desk: Desk, later: bytes) -> None:
    lease, asked = desk.open(1), desk.open(2, ask=2)
    assert desk.confirm(asked, ask=2, content=b"other weights   ") is Loss.CONTENT
    desk.engine.set_content(b"")
    desk.engine.set_content(later)
    assert desk.confirm(lease) is (None if later == CONTENT else Loss.CONTENT)
    assert desk.pins() == 0


def test_a_lease_of_the_new_epoch_outlives_the_look_that_finds_it_new(desk: Desk) -> None:
    desk.open(0, ask=1)
    desk.engine.set_epoch(1)
    # Granted between the reset and the next look.
    fresh = desk.open(1, ask=2)
    desk.leases.expire(0.2)
    assert desk.pins() == 1
    assert desk.confirm(fresh, ask=2) is None


def test_not_confirmed_without_a_target(desk: Desk) -> None:
    lease = desk.open(0)
    desk.target_alive = False
    assert desk.confirm(lease) is Loss.TARGET_DOWN
    assert desk.pins() == 0


def test_not_confirmed_when_a_pin_was_taken_away(desk: Desk) -> None:
    lease = desk.open(0, 1)
    desk.engine.zero_control_pins()
    assert desk.confirm(lease) is Loss.PINS_LOST


def test_a_lease_belongs_to_its_peer_and_its_ask(desk: Desk) -> None:
    lease = desk.open(0, peer="p", ask=1)
    assert desk.confirm(lease, peer="q") is Loss.UNKNOWN
    assert desk.confirm(lease, ask=2) is Loss.UNKNOWN
    assert not desk.leases.release("q", 1)
    assert desk.pins() == 1
    assert desk.leases.release("p", 1)
    assert not desk.leases.release("p", 1)
    assert desk.pins() == 0


def test_a_peer_that_is_gone_keeps_nothing(desk: Desk) -> None:
    for ask in range(3):
        desk.open(ask, peer="p", ask=ask)
    kept = desk.open(9, peer="q")
    desk.leases.drop_peer("p")
    assert desk.pins() == 1
    assert desk.confirm(kept, peer="q") is None


def test_a_peer_alone_may_have_all_but_what_is_left_for_stores_and_a_newcomer(desk: Desk) -> None:
    assert desk.leases.room("p", 0.0) == BLOCKS * 6 // 8
    desk.open(*range(BLOCKS * 6 // 8), peer="p", ask=1)
    assert desk.leases.room("p", 0.0) == 0
    # Whoever has nothing yet finds something.
    assert desk.leases.room("q", 0.0) == BLOCKS // 8
    desk.leases.release("p", 1)
    assert desk.leases.room("p", 0.0) == BLOCKS * 6 // 8


def test_peers_share_alike(desk: Desk) -> None:
    desk.open(0, peer="p")
    desk.open(1, peer="q")
    assert desk.leases.room("p", 0.0) == BLOCKS * 6 // 8 // 2 - 1
    assert desk.leases.room("r", 0.0) == BLOCKS * 7 // 8 // 3


def test_whoever_waits_has_a_share_of_what_is_freed(desk: Desk) -> None:
    half = BLOCKS * 7 // 8 // 2
    desk.open(*range(half), peer="p")
    desk.open(*range(half, 2 * half), peer="q")
    assert desk.leases.room("r", 0.0) == 0
    desk.leases.waits("r", 0.0)
    desk.leases.release("p", 1)
    # The one that asks again at once does not get all of it back.
    share = BLOCKS * 7 // 8 // 3
    assert desk.leases.room("p", 0.1) == share
    desk.open(*range(share), peer="p", ask=2)
    assert desk.leases.room("r", 0.1) == half - share


def test_who_stops_asking_does_not_wait(desk: Desk) -> None:
    alone = desk.leases.room("p", 0.0)
    desk.leases.waits("r", 0.0)
    desk.leases.waits("s", 0.5)
    assert desk.leases.room("p", 0.5) == BLOCKS * 7 // 8 // 3
    assert desk.leases.room("p", WAITS_S + 0.1) == BLOCKS * 7 // 8 // 2
    desk.leases.drop_peer("s")
    assert desk.leases.room("p", WAITS_S + 0.1) == alone


def test_the_number_of_leases_of_a_peer_is_bounded(desk: Desk) -> None:
    for ask in range(MAX_LEASES):
        assert desk.leases.room("p", 0.0)
        desk.leases.open("p", ask, b"", 0, CONTENT, 1000, now=0.0)
    assert desk.leases.room("p", 0.0) == 0
    assert desk.leases.room("q", 0.0) > 0


def test_what_is_remembered_of_lost_leases_is_bounded(desk: Desk) -> None:
    numbers = []
    for ask in range(REMEMBERED + 1):
        numbers.append(desk.leases.open("p", ask, b"", 0, CONTENT, 1, now=0.0).number)
        desk.leases.expire(1.0)
    assert desk.confirm(numbers[0], ask=0) is Loss.UNKNOWN
    assert desk.confirm(numbers[1], ask=1) is Loss.EXPIRED


def test_a_lease_lasts_at_most_a_minute(desk: Desk) -> None:
    desk.open(0, lease_ms=10**9)
    assert desk.leases.expire(59.9) == 60.0
    assert desk.leases.expire(60.0) is None
    assert desk.pins() == 0
