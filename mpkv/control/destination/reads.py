"""The READs of pulls, from the grant until nothing of them can write any more."""

from collections.abc import Iterable
from typing import Protocol

from mpkv.control.destination.answers import Answers
from mpkv.control.destination.initiators import Initiators, State
from mpkv.control.destination.open_pull import OpenPull, Step
from mpkv.control.destination.quarantine import Quarantine
from mpkv.control.destination.session import Failure
from mpkv.memory import Counters, block_ids
from mpkv.messages import MissReason, Read


class Owner(Protocol):
    """Who hears what becomes of the READs."""

    def landed(self, pull: OpenPull, now: float) -> None:
        """The READ has succeeded; whether its bytes count the source says."""

    def fail(self, pull: OpenPull, why: Failure, *, broken_at: float = 0.0) -> None:
        """No READ, or one that failed at `broken_at`."""


class Reads:
    """Posts them, and keeps in quarantine what their pulls left behind."""

    def __init__(
        self,
        blocks: int,
        initiators: Initiators,
        answers: Answers,
        counters: Counters,
        owner: Owner,
    ) -> None:
        self._initiators = initiators
        self._answers = answers
        self._counters = counters
        self._owner = owner
        self._quarantine = Quarantine(blocks)
        self._reading: dict[int, OpenPull] = {}
        self._numbers = 0

    @property
    def quarantined(self) -> int:
        """How many READs of failed pulls have not ended."""
        return len(self._quarantine)

    def suspects(self, instance: str) -> bool:
        """Whether a READ from there is unfinished that makes others unwise. The next initiator
        has nothing to do with what the last one left."""
        return self._initiators.alive and self._quarantine.suspects(instance)

    def begin(self, pull: OpenPull, now: float) -> None:
        """READ as soon as the peer is registered."""
        if self._quarantine.recycles_soon(now):
            # The next initiator will READ, as soon as it has registered the peer.
            return
        registration = self._initiators.registration(pull.session.instance, now)
        if registration is None or registration.state is State.FAILED:
            detail = registration.detail if registration else "the peer is gone"
            why = f"cannot register {pull.session.label} with NIXL: {detail}"
            self._owner.fail(pull, Failure(MissReason.TRANSFER_FAILED, why))
        elif registration.state is State.ADDED:
            self._post(pull)

    def registration_changed(self, pulls: Iterable[OpenPull], instance: str, now: float) -> None:
        """The peer has been added to the initiator, or could not be."""
        for pull in pulls:
            if pull.step is Step.GRANTED and pull.session.instance == instance:
                self.begin(pull, now)

    def leave(self, pull: OpenPull, *, suspect: bool, broken_at: float) -> None:
        """The pull is over, its READ is not."""
        kept = self._quarantine.hold(pull, suspect=suspect, broken_at=broken_at)
        self._counters.add("slots_quarantined", kept)

    def forget(self, pull: OpenPull) -> None:
        """Its READ is over, or in quarantine, or never was."""
        self._reading.pop(pull.part.read, None)

    # --- the initiator -----------------------------------------------------------------------

    def done(self, read: int, now: float) -> None:
        pull = self._reading.pop(read, None)
        if pull is None:
            self._over(read)
        else:
            self._owner.landed(pull, now)

    def failed(self, read: int, detail: str, posted: bool, now: float) -> None:
        pull = self._reading.get(read)
        if pull is not None:
            why = Failure(
                MissReason.TRANSFER_FAILED, f"the READ from {pull.session.label} failed: {detail}"
            )
            if not posted:
                del self._reading[read]
                pull.step = Step.GRANTED
            self._owner.fail(pull, why, broken_at=now)
        elif posted:
            self._quarantine.broken(read, now)
        else:
            self._over(read)

    def initiator_gone(self, pulls: Iterable[OpenPull], now: float) -> None:
        """It is dead or dying, but not yet known to be reaped."""
        why = Failure(MissReason.HELPERS_DOWN, "the initiator died during the READ")
        for pull in list(self._reading.values()):
            self._owner.fail(pull, why)
        for pull in pulls:
            if pull.step is Step.GRANTED:
                # Its peer may be the one that the initiator died of.
                self.begin(pull, now)

    def initiator_reaped(self) -> None:
        """No READ of any initiator before the one that just came can write any more."""
        for number in self._quarantine.all_over():
            self._answers.returned(number)

    def tick(self, now: float) -> float | None:
        """End an initiator that will not end its READs; return when to call again."""
        if not len(self._quarantine) or not self._initiators.alive:
            return None
        why = self._quarantine.verdict(now, others_read=bool(self._reading))
        if why is None:
            return self._quarantine.next_due()
        self._initiators.kill(why, now)
        return None

    def _post(self, pull: OpenPull) -> None:
        self._numbers += 1
        part = pull.part
        read = Read(self._numbers, pull.session.instance, part.remote, block_ids(part.slots))
        if not self._initiators.read(read):
            why = Failure(MissReason.QUEUE_FULL, "the ring to the initiator is full")
            self._owner.fail(pull, why)
            return
        pull.step, part.read = Step.READING, read.read
        self._reading[read.read] = pull
        self._counters.add("reads")
        self._answers.traced("read_posted", pull)

    def _over(self, read: int) -> None:
        number = self._quarantine.over(read)
        if number is None:
            self._counters.add("dropped_stale")
        else:
            self._answers.returned(number)
