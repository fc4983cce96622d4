"""What one source, at one time, cannot give follows: from there, or from the node's other ranks."""

import contextlib
from collections.abc import Callable

import pytest

from mpkv.control.network.wire import Ask, Confirm, Confirmed, Denied, Grant
from mpkv.messages import KeyGroup, MissReason, Pulled, PullFailed
from tests.control.common import CONTENT, free_port, keys, wait_for
from tests.control.harness import Plane
from tests.control.raw import RawPeer, closing

TIER = 2_200


@pytest.fixture
def ready(start: Callable[..., Plane]) -> Callable[..., Plane]:
    """`ready(node, ...)` is a control plane that listens."""

    def begin(node: str, **options: object) -> Plane:
        plane = start(node, **{"blocks": TIER, **options})
        plane.wait_ready()
        return plane

    return begin


def missing(plane: Plane, pull: int) -> MissReason | None:
    answer = plane.answer(pull)
    return answer.missing if isinstance(answer, Pulled) else answer.reason


def test_what_others_left_no_room_for_follows(ready: Callable[..., Plane]) -> None:
    source, destination = ready("source"), ready("destination")
    prompts = [keys(f"p{n}.", 32) for n in range(64)]
    for prompt in prompts:
        source.store(prompt)
    pulls = [destination.pull(source.address, prompt) for prompt in prompts]
    for pull in pulls:
        assert missing(destination, pull) is None
        assert destination.brought(pull) == list(range(32))


def test_pulls_with_windows_wait_until_there_is_room_for_all_of_them(
    ready: Callable[..., Plane],
) -> None:
    source, destination = ready("source"), ready("destination")
    prompts = [(keys(f"f{n}.", 24), keys(f"w{n}.", 24)) for n in range(64)]
    for full, sliding in prompts:
        source.store(full + sliding[-8:])
    pulls = [
        destination.pull(
            source.address,
            (KeyGroup(b"".join(full), 16, 0), KeyGroup(b"".join(sliding), 16, 8)),
            slots=32,
        )
        for full, sliding in prompts
    ]
    for pull in pulls:
        assert missing(destination, pull) is None
        assert destination.brought(pull) == [*range(24), *range(40, 48)]


def test_many_destinations_get_all_of_it(ready: Callable[..., Plane]) -> None:
    source = ready("source")
    others = [ready(f"d{n}") for n in range(3)]
    wanted = keys("a", 1800)
    source.store(wanted)
    small = ready("small")
    pulls = [(other, other.pull(source.address, wanted)) for other in others]
    pulls.append((small, small.pull(source.address, wanted[:20])))

    def all_ended() -> bool:
        return all([plane.ended(pull) for plane, pull in pulls])

    wait_for(all_ended, "the end of all pulls")
    for plane, pull in pulls:
        assert missing(plane, pull) is None
        assert plane.brought(pull) == list(range(20 if plane is small else 1800))


def test_a_small_pull_finds_room_between_large_ones(ready: Callable[..., Plane]) -> None:
    source = ready("source", blocks=64)
    wanted = keys("a", 60)
    source.store(wanted)
    with contextlib.ExitStack() as stack:
        # Two that always have more to ask for, and one that wants little.
        raws = [RawPeer(source.address, name) for name in ("p", "q", "r")]
        for port, raw in enumerate(raws, 1):
            stack.enter_context(closing(raw))
            raw.hello(f"127.0.0.1:{port}")

        def ask(number: int, limit: int) -> Ask:
            groups = (KeyGroup(b"".join(wanted[:limit]), 16, 0),)
            return Ask(source.instance, number, groups, limit, 30_000, CONTENT)

        p, q, small = raws
        granted = [raw.ask(ask(1, 60)) for raw in (p, q)]
        assert isinstance(small.ask(ask(1, 4)), Denied)
        for raw, grant in zip((p, q), granted, strict=True):
            assert isinstance(grant, Grant)
            raw.send(Confirm(source.instance, 1, grant.lease, CONTENT))
            raw.send(ask(2, 60))
            assert isinstance(raw.receive(), Confirmed)
            assert isinstance(raw.receive(), Grant)
        found = small.ask(ask(2, 4))
        assert isinstance(found, Grant)
        assert len(found.blocks) == 4 * 4


def test_one_pull_alone_gets_more_than_it_may_have_at_once(ready: Callable[..., Plane]) -> None:
    source, destination = ready("source"), ready("destination")
    wanted = keys("a", TIER - 10)
    source.store(wanted)
    pull = destination.pull(source.address, wanted)
    assert missing(destination, pull) is None
    assert destination.brought(pull) == list(range(TIER - 10))
    assert len(destination.parts(pull)) == 2


def test_waiting_for_room_ends_with_the_deadline(ready: Callable[..., Plane]) -> None:
    source = ready("source", blocks=64)
    holders = [ready(f"h{n}", blocks=64) for n in range(2)]
    wanted = keys("a", 64)
    source.store(wanted)
    for holder in holders:
        holder.manual()
        holder.pull(source.address, wanted)
        holder.wait_read()
    late = ready("late", blocks=64)
    pull = late.pull(source.address, wanted, deadline_s=0.5)
    answer = late.answer(pull)
    assert isinstance(answer, PullFailed)
    assert answer.reason is MissReason.TIMED_OUT
    assert "room at the peer" in answer.detail
    assert source.count("denied_quota") > 1
    for holder in holders:
        holder.automatic()
        holder.finish_reads()
        holder.finish_reads_until_end(1)


def test_any_rank_of_a_node_serves(ready: Callable[..., Plane]) -> None:
    ranks = [ready(f"rank{n}") for n in range(3)]
    destination = ready("destination")
    wanted = keys("a", 50)
    ranks[2].store(wanted)
    named, *also = [rank.address for rank in ranks]
    pull = destination.pull(named, wanted, also=tuple(also))
    assert missing(destination, pull) is None
    assert destination.brought(pull) == list(range(50))


def test_what_one_rank_begins_another_ends(ready: Callable[..., Plane]) -> None:
    ranks = [ready(f"rank{n}") for n in range(2)]
    destination = ready("destination")
    wanted = keys("a", 50)
    ranks[0].store(wanted[:30])
    ranks[1].store(wanted[:45])
    pull = destination.pull(ranks[0].address, wanted, also=(ranks[1].address,))
    assert missing(destination, pull) is MissReason.NOT_HELD
    assert destination.brought(pull) == list(range(45))
    assert [part.more for part in destination.parts(pull)] == [True, False]


def test_a_rank_that_is_down_is_passed_over(ready: Callable[..., Plane]) -> None:
    rank = ready("rank1")
    wanted = keys("a", 50)
    rank.store(wanted)
    destination = ready("destination", peers=(rank.address,))
    wait_for(lambda: destination.warmed(), "the rank to be up")
    address = f"127.0.0.1:{free_port()}"
    pull = destination.pull(address, wanted, also=(rank.address,))
    assert missing(destination, pull) is None
    assert destination.brought(pull) == list(range(50))


def test_the_reason_is_of_the_rank_that_was_named(ready: Callable[..., Plane]) -> None:
    rank, destination = ready("rank1"), ready("destination")
    address = f"127.0.0.1:{free_port()}"
    # It is known to be down when the named rank is still greeted.
    assert missing(destination, destination.pull(address, keys("a", 5))) is MissReason.PEER_DOWN
    pull = destination.pull(rank.address, keys("a", 5), also=(address,))
    assert missing(destination, pull) is MissReason.NOT_HELD


def test_fewer_slots_than_keys(ready: Callable[..., Plane]) -> None:
    source, destination = ready("source"), ready("destination")
    wanted = keys("a", 50)
    source.store(wanted)
    pull = destination.pull(source.address, wanted, slots=20)
    assert missing(destination, pull) is MissReason.NO_SPACE
    assert destination.brought(pull) == list(range(20))
