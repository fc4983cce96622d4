"""When it is known what the engine's blocks are of, and when nothing may be shared."""

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingWorkerMetadata,
)

from mpkv.engine.content import Content, LookedMetadata
from mpkv.memory import FILLING, Ledger
from tests.support.standin import KEY_SIZE, make_keys

OLD, NEW = b"o" * 32, b"n" * 32


class Engine:
    """What the connector does with a `Content`, and a worker or more that the test plays."""

    def __init__(self, workers: int = 1, start: tuple[bytes, ...] = ()) -> None:
        self.ledger = Ledger.create(16, KEY_SIZE)
        self.content = Content(self.ledger, "", start, workers)
        self._stored = 0

    def step(self, *digests: bytes, working: bool = True) -> int:
        """A step whose workers answer at once, if they are to look at all."""
        look = self.content.to_look(working)
        if look:
            self.answer(look, *digests)
        return look

    def answer(self, look: int, *digests: bytes) -> None:
        for rank, digest in enumerate(digests):
            self.content.seen(look, rank, digest)

    def store(self) -> None:
        self._stored += 1
        allocated = self.ledger.allocate(1, FILLING)
        assert allocated is not None
        self.ledger.publish(allocated[0], make_keys(f"{self._stored}", 1)[0], False)

    def reset(self, *, all_gone: bool = True) -> None:
        self.content.may_change()
        self.ledger.drop_ready()
        self.ledger.set_epoch(self.ledger.epoch + 1)
        if all_gone:
            self.content.all_gone()

    @property
    def known(self) -> bytes:
        return self.ledger.content


@pytest.fixture
def old() -> bytes:
    """The content of an engine of old weights."""
    engine = Engine(start=(OLD,))
    return engine.known


def test_what_the_workers_left_at_the_start_is_known_before_any_step(old: bytes) -> None:
    assert len(old) == 16
    assert Engine(start=(NEW,)).known not in (b"", old)
    # Of two workers one has left nothing.
    assert Engine(2, start=(OLD,)).known == b""


def test_the_order_of_the_workers_counts() -> None:
    assert Engine(2, start=(OLD, NEW)).known != Engine(2, start=(NEW, OLD)).known


def test_after_a_reset_it_is_known_again_from_the_first_step_that_works(old: bytes) -> None:
    engine = Engine(start=(OLD,))
    engine.reset()
    assert engine.known == b""
    # A paused engine that only cleans up: its weights may be about to change.
    assert engine.step(OLD, working=False) == 0
    assert engine.known == b""
    assert engine.step(OLD)
    assert engine.known == old
    assert engine.step(OLD) == 0


def test_a_reset_for_other_weights(old: bytes) -> None:
    engine = Engine(start=(OLD,))
    engine.step()
    engine.store()
    engine.reset()
    engine.content.may_change()
    engine.step(NEW)
    assert engine.known == Engine(start=(NEW,)).known != old


def test_all_workers_must_have_looked() -> None:
    engine = Engine(2, start=(OLD, OLD))
    engine.reset()
    look = engine.content.to_look(True)
    engine.content.seen(look, 1, NEW)
    assert engine.known == b""
    engine.content.seen(look, 0, OLD)
    assert engine.known == Engine(2, start=(OLD, NEW)).known


def test_an_answer_to_a_look_of_before_a_reset_says_nothing() -> None:
    engine = Engine(start=(OLD,))
    engine.reset()
    look = engine.content.to_look(True)
    engine.reset()
    engine.answer(look, OLD)
    assert engine.known == b""
    engine.step(NEW)
    assert engine.known == Engine(start=(NEW,)).known


def test_two_changes_in_quick_succession_leave_the_last() -> None:
    engine = Engine(start=(OLD,))
    engine.content.may_change()
    engine.content.may_change()
    engine.step(NEW)
    assert engine.known == Engine(start=(NEW,)).known


def test_whoever_is_let_at_the_workers_and_changes_nothing(old: bytes) -> None:
    engine = Engine(start=(OLD,))
    engine.step()
    engine.store()
    engine.content.may_change()
    assert engine.known == b""
    engine.step(OLD)
    assert engine.known == old
    assert engine.content.lost == ""


@pytest.mark.parametrize("before", ["a step", "a pull", "a look whose answer is late"])
def test_weights_that_change_beside_blocks_of_the_old_ones_are_nobodys(before: str) -> None:
    engine = Engine(start=(OLD,))
    look = 0
    if before == "a step":
        # Its blocks are in vLLM's own cache at least.
        engine.step()
    elif before == "a pull":
        engine.store()
    else:
        engine.reset()
        look = engine.content.to_look(True)
    engine.content.may_change()
    if look:
        engine.answer(look, OLD)
    engine.step(NEW)
    assert "have changed while blocks of the old ones" in engine.content.lost
    assert engine.known == b""
    # Nor with a reset that leaves requests with what they have computed.
    engine.reset(all_gone=False)
    assert engine.step(NEW) == 0
    assert engine.known == b""
    engine.reset()
    assert engine.content.lost == ""
    engine.step(NEW)
    assert engine.known == Engine(start=(NEW,)).known


def test_requests_that_run_through_a_reset_must_not_bring_old_blocks_to_new_weights(
    old: bytes,
) -> None:
    engine = Engine(start=(OLD,))
    engine.step()
    engine.reset(all_gone=False)
    engine.step(OLD)
    assert engine.known == old
    engine.reset(all_gone=False)
    engine.content.may_change()
    engine.step(NEW)
    assert "have changed while blocks of the old ones" in engine.content.lost


def test_before_the_first_request_weights_may_come_without_a_reset() -> None:
    """As where an engine starts with weights of no meaning."""
    engine = Engine(start=(OLD,))
    engine.content.may_change()
    engine.step(NEW)
    assert engine.known == Engine(start=(NEW,)).known


def test_what_workers_saw_comes_together_with_what_they_have_done() -> None:
    done = OffloadingWorkerMetadata(completed_jobs={7: 1})
    saw = LookedMetadata(completed_jobs={7: 1, 8: 1}, seen={(3, 0): OLD})
    both = saw.aggregate(LookedMetadata(seen={(3, 1): NEW}))
    assert both.seen == {(3, 0): OLD, (3, 1): NEW}
    assert both.aggregate(done).completed_jobs == {7: 2, 8: 1}
    assert both.aggregate(done).seen == both.seen


def test_weights_that_a_worker_cannot_look_at() -> None:
    engine = Engine(2, start=(OLD, OLD))
    engine.reset()
    engine.step(OLD, b"")
    assert engine.known == b""
    # Nobody is to wait for what will not come.
    assert "cannot be sampled" in engine.content.lost
    engine.reset()
    engine.step(OLD, OLD)
    assert engine.known == Engine(2, start=(OLD, OLD)).known
