"""The pull protocol under every fault at every step, and under random ones."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mpkv.cluster.settings import Integrity
from mpkv.memory import Ledger
from mpkv.messages import MissReason
from tests.control.common import keys
from tests.control.destination.world import World

KEYS = keys("a", 6)

Step = Callable[[World], object]

# One pull that goes well, from the first connection to the answer.
STEPS: list[tuple[str, Step]] = [
    ("pull", lambda w: w.pull(KEYS)),
    ("hello arrives", lambda w: w.deliver_to_source()),
    ("welcome arrives", lambda w: w.deliver_to_destination()),
    ("peer is added", lambda w: w.initiator_takes()),
    ("ask arrives", lambda w: w.deliver_to_source()),
    ("grant arrives", lambda w: w.deliver_to_destination()),
    ("READ begins", lambda w: w.initiator_takes()),
    ("READ ends", lambda w: w.read_ends()),
    ("confirm arrives", lambda w: w.deliver_to_source()),
    ("confirmed arrives", lambda w: w.deliver_to_destination()),
]

# The same pull when its blocks are checked; the source hashes last of all.
CHECKED: list[tuple[str, Step]] = [
    *STEPS[:-1],
    ("source hashes", lambda w: w.source_hashes()),
    ("confirmed arrives", lambda w: w.deliver_to_destination()),
    ("landed is hashed", lambda w: w.landed_is_hashed()),
]
# The same when others leave room for four of the six blocks at a time.
PARTED: list[tuple[str, Step]] = [
    ("others pull", World.others_hold_leases),
    *STEPS,
    ("second ask arrives", lambda w: w.deliver_to_source()),
    ("second grant arrives", lambda w: w.deliver_to_destination()),
    ("second READ begins", lambda w: w.initiator_takes()),
    ("second READ ends", lambda w: w.read_ends()),
    ("second confirm arrives", lambda w: w.deliver_to_source()),
    ("second confirmed arrives", lambda w: w.deliver_to_destination()),
]
PULLS = {Integrity.OFF: STEPS, Integrity.SAMPLED: CHECKED, Integrity.FULL: CHECKED}

FAULTS: dict[str, tuple[Step, ...]] = {
    "nothing": (),
    "connection drops": (World.drop_connection,),
    "connection drops twice": (World.drop_connection, World.drop_connection),
    "source crashes": (World.crash_source,),
    "source restarts": (World.crash_source, World.start_source),
    "source restarts over other content": (
        World.crash_source,
        World.start_source,
        lambda w: w.overwrite(16),
    ),
    "target dies": (World.end_target,),
    "source resets its cache": (World.reset_source_cache, lambda w: w.overwrite(8)),
    "source resets its cache and stores the same": (
        World.reset_source_cache,
        lambda w: w.store(KEYS),
        World.source_looks_at_its_weights,
    ),
    "source gets other weights": (
        World.renew_source,
        lambda w: w.store(KEYS),
        World.source_looks_at_its_weights,
    ),
    "source gets other weights and stores before its reset": (
        World.renew_source_first,
        lambda w: w.overwrite(12),
        lambda w: w.store([key for key in KEYS if w.source_ledger.find(key) < 0]),
    ),
    "both get other weights": (
        World.renew_source,
        World.renew,
        lambda w: w.store(KEYS),
        World.source_looks_at_its_weights,
        World.look_at_weights,
    ),
    "destination resets its cache": (World.reset_cache,),
    "destination resets its cache and knows again": (World.reset_cache, World.look_at_weights),
    "destination gets other weights": (World.renew, World.look_at_weights),
    "destination may get other weights": (lambda w: w.engine_ledger.set_content(b""),),
    "source overwrites what it may": (lambda w: w.overwrite(10), lambda w: w.overwrite(10)),
    "initiator dies unseen": (lambda w: w.initiator_dies(noticed=False),),
    "initiator dies": (lambda w: w.initiator_dies(noticed=True),),
    "initiator is replaced": (lambda w: w.initiator_dies(noticed=True), World.new_initiator),
    "initiator is replaced unseen": (
        lambda w: w.initiator_dies(noticed=False),
        World.new_initiator,
    ),
    "the pull is cancelled": (lambda w: w.cancel(1),),
    "READ breaks": (World.read_breaks,),
    "a long pause": (lambda w: w.pass_time(3.9),),
    "the deadline passes": (lambda w: w.pass_time(10.0),),
    "lease and content end": (
        World.expire_leases,
        lambda w: w.overwrite(8),
        lambda w: w.overwrite(8),
    ),
}

# Steps after which a fault must not cost the pull its blocks.
HARMLESS = {
    "nothing": range(1, 11),
    # Between the source's word and its arrival a lost connection loses the word.
    "connection drops": [*range(1, 9), 10],
    "connection drops twice": [*range(1, 9), 10],
    # From the grant on, the blocks are pinned.
    "source overwrites what it may": range(5, 11),
}
HARMLESS_CHECKED = {
    "nothing": range(1, 13),
    "connection drops": [*range(1, 10), 11, 12],
    "connection drops twice": [*range(1, 10), 11, 12],
    "source overwrites what it may": range(5, 13),
    # What the source has confirmed is checked without it.
    "source crashes": range(11, 13),
    "target dies": range(10, 13),
}


def strike(world: World, fault: str) -> None:
    for step in FAULTS[fault]:
        step(world)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("integrity", "at"),
    [(integrity, at) for integrity, steps in PULLS.items() for at in range(len(steps) + 1)],
)
def test_a_fault_at_every_step(integrity: Integrity, at: int, fault: str) -> None:
    world = World(integrity=integrity)
    try:
        world.store(KEYS)
        for number, (name, step) in enumerate(PULLS[integrity][:at]):
            assert step(world) is not False, f"step {number}, {name}, was not possible"
        strike(world, fault)
        world.settle()
        harmless = HARMLESS if integrity is Integrity.OFF else HARMLESS_CHECKED
        if at in harmless.get(fault, ()):
            assert world.pulls[1].state == "pulled"
        # Whatever happened, the next pull finds the peer again.
        world.mend(KEYS)
        again = world.pull(KEYS)
        assert again is not None
        world.settle()
        assert world.pulls[again].state == "pulled"
    finally:
        world.close()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", range(len(PARTED) + 1))
def test_a_fault_at_every_step_of_a_pull_in_parts(at: int, fault: str) -> None:
    world = World()
    try:
        world.store(KEYS)
        for number, (name, step) in enumerate(PARTED[:at]):
            assert step(world) is not False, f"step {number}, {name}, was not possible"
        strike(world, fault)
        world.settle()
        if fault == "nothing" and at > 1:
            assert (world.pulls[1].state, world.pulls[1].brought) == ("pulled", [*range(6)])
    finally:
        world.close()


@pytest.mark.parametrize("first", FAULTS)
@pytest.mark.parametrize("then", FAULTS)
def test_two_faults_during_one_pull(first: str, then: str) -> None:
    for at, later in ((2, 5), (5, 7), (6, 8), (7, 7), (7, 9), (8, 8)):
        world = World()
        try:
            world.store(KEYS)
            for _, step in STEPS[:at]:
                step(world)
            strike(world, first)
            for _, step in STEPS[at:later]:
                step(world)
            strike(world, then)
            world.settle()
        finally:
            world.close()


@pytest.mark.parametrize("at", range(1, 8))
def test_a_flip_before_the_bytes_have_landed_is_found(at: int) -> None:
    world = World(integrity=Integrity.FULL)
    try:
        world.store(KEYS)
        world.source_checksums.look()
        for _, step in CHECKED[:at]:
            step(world)
        world.source_checksums.flip()
        world.settle()
        assert world.pulls[1].state == "failed"
        assert world.pulls[1].reason is MissReason.CORRUPTED
    finally:
        world.close()


class Racing:
    """The source's ledger, whose engine does something between the look at its content and the
    first pin."""

    def __init__(self, ledger: Ledger, act: Callable[[], object]) -> None:
        self._ledger = ledger
        self._act = act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def pin_prefix(self, keys: bytes) -> bytes:
        self._act()
        return self._ledger.pin_prefix(keys)


@pytest.mark.parametrize("reset", [False, True])
def test_other_weights_that_come_while_an_ask_is_answered_are_not_confirmed(reset: bool) -> None:
    world = World()

    def renew() -> None:
        if reset:
            world.renew_source()
        else:
            world.renew_source_first()
        world.store(KEYS)
        if reset:
            world.source_looks_at_its_weights()

    try:
        for _, step in STEPS[:4]:
            step(world)
        world.source._ledger = Racing(world.source_view, renew)
        world.run()
        world.settle()
        assert world.pulls[1].state == "failed"
        assert world.pulls[1].reason is MissReason.LEASE_LOST
    finally:
        world.close()


class PullMachine(RuleBasedStateMachine):
    """Pulls, deliveries, READs and faults in any order."""

    @initialize(seed=st.integers(0, 1000), integrity=st.sampled_from(Integrity))
    def begin(self, seed: int, integrity: Integrity) -> None:
        self.world = World(seed, integrity)
        self.all_is_checked = integrity is Integrity.FULL
        self.world.store(KEYS)

    @rule(first=st.integers(0, 3), count=st.integers(1, 6), patience=st.sampled_from([0.5, 10.0]))
    def pull(self, first: int, count: int, patience: float) -> None:
        self.world.pull((KEYS + keys("b", 3))[first : first + count], patience)

    @rule(back=st.integers(0, 3))
    def cancel(self, back: int) -> None:
        self.world.cancel(max(len(self.world.pulls) - back, 1))

    @rule(count=st.integers(1, 4))
    def messages_arrive(self, count: int) -> None:
        for _ in range(count):
            self.world.deliver_to_source()
            self.world.deliver_to_destination()

    @rule()
    def everything_arrives(self) -> None:
        self.world.run()

    @rule(adds=st.sampled_from([True, True, True, False]), begins=st.sampled_from([True, False]))
    def initiator_takes(self, adds: bool, begins: bool) -> None:
        self.world.initiator_takes(adds=adds, begins=begins)

    @rule()
    def initiator_takes_well(self) -> None:
        self.world.initiator_takes()

    @rule()
    def read_ends(self) -> None:
        self.world.read_ends()

    @rule()
    def read_breaks(self) -> None:
        self.world.read_breaks()

    @rule()
    def source_hashes(self) -> None:
        self.world.source_hashes()

    @rule()
    def landed_is_hashed(self) -> None:
        self.world.landed_is_hashed()

    @rule()
    def source_looks(self) -> None:
        self.world.source_checksums.look()

    # What a dead control plane has hashed is lost with it.
    @precondition(lambda self: self.all_is_checked and self.world.source_up)
    @rule()
    def source_flips_what_it_has_hashed(self) -> None:
        self.world.source_checksums.look()
        self.world.source_checksums.flip()

    @rule(noticed=st.booleans())
    def initiator_dies(self, noticed: bool) -> None:
        self.world.initiator_dies(noticed)

    @rule()
    def initiator_is_replaced(self) -> None:
        if self.world.initiator is None:
            self.world.new_initiator()

    @rule()
    def connection_drops(self) -> None:
        self.world.drop_connection()

    @rule(content_lost=st.booleans())
    def source_restarts(self, content_lost: bool) -> None:
        self.world.crash_source()
        if content_lost:
            self.world.overwrite(16)
        self.world.start_source()
        self.world.store([key for key in KEYS if self.world.source_ledger.find(key) < 0])

    @rule()
    def source_crashes(self) -> None:
        self.world.crash_source()

    @rule()
    def source_starts(self) -> None:
        if not self.world.source_up:
            self.world.start_source()

    @rule()
    def target_dies(self) -> None:
        self.world.end_target()

    @rule()
    def leases_expire(self) -> None:
        self.world.expire_leases()

    @rule(count=st.integers(1, 16))
    def source_stores_something_else(self, count: int) -> None:
        self.world.overwrite(count)

    @rule()
    def source_stores_it_again(self) -> None:
        self.world.store([key for key in KEYS if self.world.source_ledger.find(key) < 0])

    @rule(renewed=st.booleans())
    def source_resets_its_cache(self, renewed: bool) -> None:
        self.world.reset_source_cache()
        self.world.source_weights += renewed

    @rule(renewed=st.booleans())
    def destination_resets_its_cache(self, renewed: bool) -> None:
        self.world.reset_cache()
        self.world.weights += renewed

    @rule()
    def both_look_at_their_weights(self) -> None:
        self.world.source_looks_at_its_weights()
        self.world.look_at_weights()

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.5, 12.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @invariant()
    def one_session(self) -> None:
        if hasattr(self, "world"):
            # And one to an address where nobody is.
            assert len(self.world.destination.sessions) <= 2

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.world.settle()
            finally:
                self.world.close()


TestPullMachine = PullMachine.TestCase
TestPullMachine.settings = settings(
    max_examples=120, stateful_step_count=50, deadline=None, derandomize=True
)
