"""Two engines' control planes as pure state machines, joined by a network that the test
moves one message at a time, with everything around them that can die.

Real: `Source`, `Destination`, ledgers. Modelled: time, the connection, the engines'
threads, the initiator and its READs, the hashing threads, the bytes of both tiers. The
model checks after every step what must hold at every moment:

- a pull ends at most once, and its slots come back only when no READ may write them;
- what counts as pulled is, in every slot, the content of the key that was asked for.

It interleaves steps; it says nothing about weak memory orders.
"""

import random
from collections import deque

from mpkv.cluster.settings import Integrity
from mpkv.control.destination.client import Destination
from mpkv.control.network.names import Names
from mpkv.control.network.wire import PROTOCOL, ToDestination, ToSource, encode
from mpkv.control.source.server import Source
from mpkv.memory import FILLING, LANDING, Ledger, block_ids
from mpkv.messages import (
    AddPeer,
    CancelPull,
    InitiatorReady,
    KeyGroup,
    PeerAdded,
    PeerFailed,
    Pull,
    Pulled,
    PullFailed,
    Read,
    ReadDone,
    ReadFailed,
    SlotsReturned,
    TargetReady,
    ToEngine,
)
from tests.control.common import KEY_SIZE, keys, u32
from tests.control.destination.modelled import (
    DEADLINE_S,
    EnginePull,
    ModelInitiator,
    Running,
    start_message,
)
from tests.control.destination.modelled_checksums import ModelChecksums

SOURCE_BLOCKS = 16
DESTINATION_BLOCKS = 32
ADDRESS = "10.0.0.1:7710"
UNREACHABLE = "10.0.0.9:7710"


def content_of(weights: int) -> bytes:
    return f"weights {weights}".ljust(16).encode()


class World:
    """The destination pulls from the source; both engines are the test's."""

    def __init__(self, seed: int = 0, integrity: Integrity = Integrity.OFF) -> None:
        self.now = 100.0
        # How far the source's clock has run ahead of the destination's.
        self.source_ahead = 0.0
        self.engine_ledger = Ledger.create(DESTINATION_BLOCKS, KEY_SIZE)
        self.source_ledger = Ledger.create(SOURCE_BLOCKS, KEY_SIZE)
        self.destination_view = Ledger.attach(self.engine_ledger.fd)
        self.source_view = Ledger.attach(self.source_ledger.fd)
        # What each engine computes with, and with what its blocks were computed.
        self.weights = self.source_weights = 0
        self.engine_ledger.set_content(content_of(0))
        self.source_ledger.set_content(content_of(0))
        self.source_tier: list[bytes] = [b""] * SOURCE_BLOCKS
        self.tier: list[bytes] = [b""] * DESTINATION_BLOCKS
        self.stored = 0
        # The connection: messages in flight each way, and its number at either end.
        self.to_source: deque[bytes] = deque()
        self.to_destination: deque[bytes] = deque()
        self.route = b""
        self.routes = 0
        self.connections = 0
        self.source_up = True
        self.instances = 0
        self.pulls: dict[int, EnginePull] = {}
        self.initiators: list[ModelInitiator] = []
        self.checksums = ModelChecksums(self.destination_view, self.tier)
        self.start_source()
        self.destination = Destination(
            start_message("d", "d-1", DESTINATION_BLOCKS, integrity),
            self.destination_view,
            self,
            Names(lambda: None),
            self.to_engine,
            1 << 20,
            self.checksums,
            self.destination_view.counters("control"),
            lambda event, **fields: None,
            random.Random(seed),
        )
        self.new_initiator()

    def close(self) -> None:
        views = (self.destination_view, self.source_view)
        for ledger in (*views, self.engine_ledger, self.source_ledger):
            ledger.close()

    # --- the network, as the destination's sessions see it ---------------------------------

    def connect(self, endpoint: str) -> bytes:
        if endpoint == UNREACHABLE:
            raise OSError("no route to host")
        assert endpoint == ADDRESS
        self.routes += 1
        self.connections += 1
        self.route = b"route-%d" % self.routes
        return self.route

    def disconnect(self, endpoint: str) -> None:
        assert endpoint == ADDRESS
        self.route = b""
        self.to_source.clear()
        self.to_destination.clear()

    def send(self, route: bytes, message: ToSource) -> bool:
        if not route or route != self.route:
            return False
        self.to_source.append(encode(message))
        return True

    def answer(self, route: bytes, message: ToDestination) -> bool:
        if route != self.connection:
            return False
        self.to_destination.append(encode(message))
        return True

    @property
    def connection(self) -> bytes:
        """How the source names the connection there is now."""
        return b"connection-%d" % self.connections

    def deliver_to_source(self) -> bool:
        if not self.source_up or not self.to_source:
            return False
        frames = [PROTOCOL, self.to_source.popleft()]
        self.source.receive(self.connection, frames, self.now + self.source_ahead)
        return True

    def deliver_to_destination(self) -> bool:
        if not self.to_destination:
            return False
        frames = [PROTOCOL, self.to_destination.popleft()]
        self.destination.from_peer(self.route, frames, self.now)
        return True

    def drop_connection(self) -> None:
        """What was in flight is lost; libzmq connects again if the source listens."""
        self.to_source.clear()
        self.to_destination.clear()
        self.connections += 1
        self.destination.sessions.disconnected(ADDRESS, self.now)
        if not self.source_up:
            self.destination.sessions.connect_failed(ADDRESS, self.now)

    # --- the source's side ---------------------------------------------------------------------

    def start_source(self) -> None:
        self.instances += 1
        self.target_alive = True
        self.source_checksums = ModelChecksums(self.source_view, self.source_tier)
        self.source = Source(
            start_message("s", f"s-{self.instances}", SOURCE_BLOCKS),
            self.source_view,
            self.answer,
            lambda: self.target_alive,
            self.source_checksums,
            self.source_view.counters("control"),
            lambda event, **fields: None,
        )
        self.source.target_ready(TargetReady(f"s-{self.instances}.target", b"md", 0))
        self.source_up = True

    def crash_source(self) -> None:
        """The control plane dies and is reaped; nobody listens until `start_source`."""
        self.source_up = False
        self.source_ledger.zero_control_pins()
        self.drop_connection()

    def store(self, stored: list[bytes]) -> None:
        """The source's engine computes blocks, over others if it must."""
        allocated = self.source_ledger.allocate(len(stored), FILLING)
        if allocated is None:
            return
        for block, key in zip(u32(block_ids(allocated[0])), stored, strict=True):
            self.source_tier[block] = key + content_of(self.source_weights)
        self.source_ledger.publish(allocated[0], b"".join(stored), False)

    def overwrite(self, count: int) -> None:
        """The source's engine stores something else, over the blocks that nobody pins."""
        self.stored += count
        self.store(keys(f"other-{self.stored}", count))

    def others_hold_leases(self) -> None:
        """Two other peers pull, so that a third part of the source is what one may have."""
        for number, key in enumerate(keys("shared", 2)):
            self.store([key])
            slots = self.source_view.pin_many(key)
            epoch, content = self.source_view.epoch, self.source_view.content
            self.source.leases.open(
                f"other-{number}", 1, slots, epoch, content, 30_000, self.now + self.source_ahead
            )

    def source_hashes(self) -> bool:
        """The source's thread does a job, and the loop hears of it."""
        worked = self.source_up and self.source_checksums.work()
        if worked:
            self.source.tick(self.now + self.source_ahead)
        return worked

    def expire_leases(self) -> None:
        """The source's clock jumps, as that of a machine that was suspended does."""
        self.source_ahead += 100.0
        if self.source_up:
            self.source.tick(self.now + self.source_ahead)

    def end_target(self) -> None:
        self.target_alive = False

    def reset_source_cache(self) -> None:
        """Nobody knows the content until `source_looks_at_its_weights`."""
        self.source_ledger.set_content(b"")
        self.source_ledger.drop_ready()
        self.source_ledger.set_epoch(self.source_ledger.epoch + 1)

    def renew_source(self) -> None:
        """Its cache is reset for other weights."""
        self.reset_source_cache()
        self.source_weights += 1

    def renew_source_first(self) -> None:
        """Its weights change while blocks of the old ones are here; the reset comes later."""
        self.source_ledger.set_content(b"")
        self.source_weights += 1

    def source_looks_at_its_weights(self) -> None:
        self.source_ledger.set_content(content_of(self.source_weights))

    # --- the destination's engine --------------------------------------------------------------

    def pull(self, wanted: list[bytes], deadline_s: float = DEADLINE_S) -> int | None:
        allocated = self.engine_ledger.allocate(len(wanted), LANDING)
        if allocated is None:
            return None
        number = len(self.pulls) + 1
        epoch, content = self.engine_ledger.epoch, self.engine_ledger.content
        self.pulls[number] = EnginePull(wanted, allocated[0], epoch, self.weights)
        self.destination.from_engine(
            Pull(
                number,
                f"request-{number}",
                ADDRESS,
                (KeyGroup(b"".join(wanted), 16, 0),),
                allocated[0],
                epoch,
                self.now,
                self.now + deadline_s,
                (UNREACHABLE,),
                content=content,
            ),
            self.now,
        )
        return number

    def cancel(self, number: int) -> None:
        self.destination.from_engine(CancelPull(number), self.now)

    def reset_cache(self) -> None:
        self.engine_ledger.set_content(b"")
        self.engine_ledger.set_epoch(self.engine_ledger.epoch + 1)

    def renew(self) -> None:
        self.reset_cache()
        self.weights += 1

    def look_at_weights(self) -> None:
        self.engine_ledger.set_content(content_of(self.weights))

    def to_engine(self, message: ToEngine) -> None:
        pull = self.pulls[message.pull]
        if isinstance(message, SlotsReturned):
            assert pull.state == "held", f"slots of pull {message.pull} came back twice"
            pull.state = "failed"
        elif isinstance(message, PullFailed):
            assert pull.state == "open", f"pull {message.pull} ended twice"
            pull.state = "held" if message.slots_held else "failed"
            pull.reason = message.reason
        else:
            assert pull.state == "open", f"pull {message.pull} ended twice"
            self._check_content(pull, message)
            if message.more:
                self._take_back(pull, len(message.slots))
                return
            pull.state = "pulled"
            assert (message.missing is None) == (len(pull.brought) == len(pull.wanted))
        if pull.state != "held":
            self._take_back(pull, len(pull.slots))

    def _take_back(self, pull: EnginePull, size: int) -> None:
        back, pull.slots = pull.slots[:size], pull.slots[size:]
        self._check_nothing_writes(back)
        self.engine_ledger.free(back)

    def _check_content(self, pull: EnginePull, message: Pulled) -> None:
        blocks = u32(block_ids(message.slots))
        indexes = u32(message.indexes)
        assert pull.epoch == self.engine_ledger.epoch, "content of before a reset"
        assert self.engine_ledger.content == content_of(pull.weights), "for other weights"
        assert len(blocks) == len(indexes) > 0
        assert message.slots == pull.slots[: len(message.slots)]
        pull.brought += indexes
        assert pull.brought == sorted(set(pull.brought)), "a key came twice"
        for index, block in zip(indexes, blocks, strict=True):
            right = pull.wanted[index] + content_of(self.weights)
            assert self.tier[block] == right, "wrong bytes were confirmed"

    def _check_nothing_writes(self, slots: bytes) -> None:
        ours = set(u32(block_ids(slots)))
        for initiator in self.initiators:
            for running in initiator.running:
                assert ours.isdisjoint(u32(running.read.local)), "a READ may still write"
            for message in initiator.inbox:
                if isinstance(message, Read):
                    assert ours.isdisjoint(u32(message.local)), "a READ may still begin"

    # --- the initiator -----------------------------------------------------------------------

    @property
    def initiator(self) -> ModelInitiator | None:
        """The one that lives; None while the supervisor has not replaced a dead one."""
        last = self.initiators[-1] if self.initiators else None
        return None if last is None or last.killed else last

    def new_initiator(self) -> None:
        """The supervisor has reaped whatever there was and brings another."""
        for initiator in self.initiators:
            initiator.running.clear()
            initiator.inbox.clear()
        process = ModelInitiator(len(self.initiators) + 1)
        self.initiators = [process]
        self.destination.initiator_up(process, self.now)
        self.destination.from_initiator(InitiatorReady("i"), self.now)

    def initiator_dies(self, noticed: bool) -> None:
        if self.initiator is not None:
            self.initiator.killed = True
            if noticed:
                self.destination.initiators.gone(self.now)

    def initiator_takes(self, *, adds: bool = True, begins: bool = True) -> bool:
        """Take one record from the ring; `adds`, `begins`: whether it goes well."""
        initiator = self.initiator
        if initiator is None or not initiator.inbox:
            return False
        message = initiator.inbox.popleft()
        if isinstance(message, AddPeer):
            added = PeerAdded(message.instance, 0.0)
            failed = PeerFailed(message.instance, "NIXL_ERR_BACKEND")
            self.destination.from_initiator(added if adds else failed, self.now)
        elif isinstance(message, Read):
            if begins:
                content = [self.source_tier[block] for block in u32(message.remote)]
                initiator.running.append(Running(message, content))
            else:
                failure = ReadFailed(message.read, "NIXL_ERR_NOT_FOUND", False)
                self.destination.from_initiator(failure, self.now)
        return True

    def read_ends(self) -> bool:
        """The oldest READ lands: its bytes are good only if the source's never changed."""
        initiator = self.initiator
        if initiator is None or not initiator.running:
            return False
        running = initiator.running.pop(0)
        ended_with = [self.source_tier[block] for block in u32(running.read.remote)]
        local = u32(running.read.local)
        for block, before, after in zip(local, running.began_with, ended_with, strict=True):
            self.tier[block] = before if before == after else b"torn"
        if not running.reported:
            self.destination.from_initiator(ReadDone(running.read.read, 0.0), self.now)
        return True

    def landed_is_hashed(self) -> bool:
        """The destination's thread does a job, and the loop hears of it."""
        worked = self.checksums.work()
        if worked:
            self.destination.tick(self.now)
        return worked

    def read_breaks(self) -> bool:
        """A part of a READ fails and is reported; the others go on writing."""
        initiator = self.initiator
        whole = [] if initiator is None else [r for r in initiator.running if not r.reported]
        if not whole:
            return False
        whole[0].reported = True
        failure = ReadFailed(whole[0].read.read, "NIXL_ERR_BACKEND", True)
        self.destination.from_initiator(failure, self.now)
        return True

    def mend(self, wanted: list[bytes]) -> None:
        """Mend whatever is broken, store `wanted` again, and let back-offs end."""
        if not self.target_alive:
            # The supervisor replaces a control plane together with its target.
            self.crash_source()
            self.start_source()
        if self.weights != self.source_weights:
            self.reset_source_cache()
            self.weights = self.source_weights = max(self.weights, self.source_weights)
        self.source_looks_at_its_weights()
        self.look_at_weights()
        self.source_checksums.mend()
        # Storing some may evict others that are older.
        for _ in wanted:
            if lacking := [key for key in wanted if self.source_ledger.find(key) < 0]:
                self.store(lacking)
        self.pass_time(20.0)

    # --- time ----------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        if self.source_up:
            self.source.tick(self.now + self.source_ahead)
        self.destination.tick(self.now)

    def settle(self) -> None:
        """Let everything happen that still can, deadlines included; check that all ended."""
        if not self.source_up:
            self.start_source()
        self.pass_time(0.0)
        if self.initiator is None:
            self.new_initiator()
        for _ in range(40):
            self.run()
            self.pass_time(1.0)
            if self.initiator is None:
                self.new_initiator()
        for number, pull in self.pulls.items():
            assert pull.state in ("pulled", "failed"), f"pull {number} is {pull.state}"
        self.pass_time(60.0)
        assert self.source_ledger.counts()["control_pins"] == 0
        assert self.destination_view.counts()["landing"] == 0
        assert len(self.destination.pulls) == self.destination.pulls.reads.quarantined == 0

    def run(self) -> None:
        """Let what is on its way arrive, READs of broken parts excepted."""
        while (
            self.deliver_to_source()
            or self.deliver_to_destination()
            or self.initiator_takes()
            or self.read_ends()
            or self.source_hashes()
            or self.landed_is_hashed()
        ):
            pass
