"""The life of each of the engine's pulls, from its record to exactly one answer.

    WAITING -> ASKED -> GRANTED -> READING -> CONFIRMING -> Pulled
       |         |         |          |           |
       +---------+---------+----------+-----------+---> PullFailed

A pull waits for its session, for its turn there, for the source's grant, for the peer's
registration with the initiator, for the READ and for the source's word that the bytes count;
then, if they are to be checked, for its own checksums of them (CHECKING), begun with the
Confirm. From every one of these it may fail; from READING its slots stay in quarantine.

What a source gives is one part. If that is not all, the pull begins anew with the rest: at the
same source if that had only no room, or else at the next one that it may ask.
"""

import heapq
import logging
from collections import deque

from mpkv.control.destination.answers import Answers, why_denied
from mpkv.control.destination.checks import Checks
from mpkv.control.destination.choice import Want, choose
from mpkv.control.destination.initiators import Initiators
from mpkv.control.destination.open_pull import (
    LEASE_MARGIN_S,
    UNGRANTED,
    OpenPull,
    Part,
    Step,
    Weights,
    outdated,
)
from mpkv.control.destination.reads import Reads
from mpkv.control.destination.rooms import Rooms
from mpkv.control.destination.session import NOT_YET, Failure, Network, Phase, Session
from mpkv.control.destination.turns import Turns
from mpkv.control.network.wire import (
    MAX_LEASE_MS,
    Confirm,
    Confirmed,
    Denial,
    Denied,
    Grant,
    NotConfirmed,
    Release,
    unpack_grant,
)
from mpkv.errors import WireRefused
from mpkv.memory import Counters
from mpkv.messages import MissReason, Pull

log = logging.getLogger("mpkv.control")

# Each time its session turns out to be unknown to the peer, a pull may ask once more.
MAX_ASKS = 3
# Of one pull: what a source that gives single blocks can make of it.
MAX_PARTS = 256
# No pull may wait longer: the source would not keep its lease.
LONGEST_PULL_S = MAX_LEASE_MS / 1000 - LEASE_MARGIN_S


class Pulls:
    """All open pulls. Speaks to peers by `network` and to the engine by `answers`."""

    def __init__(
        self,
        *,
        key_size: int,
        blocks: int,
        deadline_s: float,
        weights: Weights,
        network: Network,
        want: Want,
        initiators: Initiators,
        answers: Answers,
        checks: Checks,
        counters: Counters,
    ) -> None:
        self._key_size = key_size
        self._deadline_s = min(deadline_s, LONGEST_PULL_S)
        if deadline_s > LONGEST_PULL_S:
            text = "pulls end after %g s, not after deadline_s = %g: leases last no longer"
            log.warning(text, LONGEST_PULL_S, deadline_s)
        self._weights = weights
        self._network = network
        self._want = want
        self._answers = answers
        self._checks = checks
        self._counters = counters
        self.reads = Reads(blocks, initiators, answers, counters, self)
        self._turns = Turns()
        self._rooms = Rooms()
        self._open: dict[int, OpenPull] = {}
        self._by_ask: dict[int, OpenPull] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._asks = 0

    def __len__(self) -> int:
        return len(self._open)

    # --- the engine ----------------------------------------------------------------------

    def is_open(self, number: int) -> bool:
        return number in self._open

    def reject(self, pull: Pull, why: Failure) -> None:
        """Answer a pull that never began."""
        self._answers.failed(pull, why, slots_held=False)

    def start(self, pull: Pull, now: float) -> None:
        sources = deque([pull.peer, *pull.also])
        session, why = choose(sources, self._want, now)
        if session is None:
            self.reject(pull, why or NOT_YET)
            return
        deadline = min(pull.deadline, pull.started + self._deadline_s)
        opened = OpenPull(pull, session, deadline, self._key_size, sources, why=why)
        self._open[pull.pull] = opened
        heapq.heappush(self._deadlines, (opened.deadline, pull.pull))
        self._answers.started(pull)
        if session.phase is Phase.UP:
            self._ask_in_turn(opened, now)

    def cancel(self, number: int) -> None:
        pull = self._open.get(number)
        if pull is not None:
            self.fail(pull, Failure(MissReason.ABORTED, "the request was cancelled"))

    # --- sessions ------------------------------------------------------------------------

    def session_up(self, session: Session, now: float) -> None:
        for ask in self._turns.abandoned(session.instance):
            self._network.send(session.route, Release(session.instance, ask))
        for pull in self._of(session):
            if pull.step is Step.WAITING:
                self._ask_in_turn(pull, now)
            elif pull.step is Step.CONFIRMING:
                # The first Confirm, or its answer, may have been lost with the connection.
                self._confirm(pull)

    def session_interrupted(self, session: Session, now: float) -> None:
        for pull in self._of(session):
            if pull.step is Step.ASKED and pull.part.asks >= MAX_ASKS:
                detail = f"{session.label} lost the session {MAX_ASKS} times"
                self._pass_on(pull, Failure(MissReason.PEER_DOWN, detail), now)
            elif pull.step in (Step.ASKED, Step.QUEUED, Step.ROOM):
                self._turns.give_back(pull)
                pull.step = Step.WAITING

    def instance_lost(self, session: Session, why: Failure) -> None:
        for pull in self._of(session):
            if pull.step in (Step.GRANTED, Step.READING, Step.CONFIRMING):
                self.fail(pull, why)

    def session_down(self, session: Session, why: Failure, now: float) -> None:
        for pull in self._of(session):
            if pull.step in UNGRANTED:
                self._pass_on(pull, why, now)
            # While its blocks are checked a pull needs nobody any more.
            elif pull.step is not Step.CHECKING:
                self.fail(pull, why)

    # --- the source's answers --------------------------------------------------------------

    def granted(self, session: Session, grant: Grant, now: float) -> None:
        pull = self._answered(session, grant.ask, Step.ASKED)
        if pull is None:
            return
        if not grant.blocks and grant.short:
            self._wait_for_room(pull, now)
            return
        if not grant.blocks:
            why = Failure(MissReason.NOT_HELD, f"{session.label} holds none of it")
            self._pass_on(pull, why, now, release=False)
            return
        try:
            if grant.content != pull.wanted.content:
                raise WireRefused("a grant of another content")
            pull.grant(unpack_grant(grant, pull.keys, pull.limit))
        except WireRefused as error:
            detail = f"{session.label} answered with {error}"
            self.fail(pull, Failure(MissReason.TRANSFER_FAILED, detail))
            return
        part = pull.part
        pull.step = Step.GRANTED
        part.lease, part.remote, part.short = grant.lease, grant.blocks, grant.short
        # The turn of the loop may have begun before the pull did.
        part.granted_at = max(now, pull.wanted.started)
        self._answers.traced("grant_received", pull)
        self.reads.begin(pull, now)

    def denied(self, session: Session, denied: Denied, now: float) -> None:
        pull = self._answered(session, denied.ask, Step.ASKED)
        if pull is None:
            return
        if denied.reason is Denial.QUOTA:
            # It was not looked at, so it counts as never asked.
            pull.part.asks -= 1
            self._wait_for_room(pull, now)
        else:
            self._pass_on(pull, why_denied(denied, session.label), now, release=False)

    def confirmed(self, session: Session, confirmed: Confirmed, now: float) -> None:
        pull = self._answered(session, confirmed.ask, Step.CONFIRMING)
        if pull is None:
            return
        if confirmed.lease != pull.part.lease:
            self._counters.add("dropped_stale")
            return
        pull.step, pull.part.sent = Step.CHECKING, confirmed.checksums
        if not self._checks.pending(pull):
            self._end_part(pull, now)

    def not_confirmed(self, session: Session, answer: NotConfirmed) -> None:
        pull = self._answered(session, answer.ask, Step.CONFIRMING)
        if pull is not None:
            detail = f"{session.label} does not confirm the bytes: {answer.reason.value}"
            self.fail(pull, Failure(MissReason.LEASE_LOST, detail), release=False)

    # --- READs -------------------------------------------------------------------------------

    def registration_changed(self, instance: str, now: float) -> None:
        """The peer has been added to the initiator, or could not be."""
        self.reads.registration_changed(list(self._open.values()), instance, now)

    def initiator_gone(self, now: float) -> None:
        """It is dead or dying, but not yet known to be reaped."""
        self.reads.initiator_gone(list(self._open.values()), now)

    def landed(self, pull: OpenPull, now: float) -> None:
        pull.step, pull.part.read_at = Step.CONFIRMING, now
        self._answers.traced("read_done", pull)
        self._checks.begin(pull)
        self._confirm(pull)

    # --- time --------------------------------------------------------------------------------

    def tick(self, now: float) -> float | None:
        """Do what time asks for; return when to call again at the latest."""
        for pull in self._checks.over():
            if pull.step is Step.CHECKING:
                self._end_part(pull, now)
        for pull in self._rooms.over(now):
            pull.step = Step.WAITING
            if pull.session.phase is Phase.UP:
                self._ask_in_turn(pull, now)
        while self._deadlines:
            deadline, number = self._deadlines[0]
            late = self._open.get(number)
            if late is not None:
                if now < deadline:
                    break
                self._time_out(late)
            heapq.heappop(self._deadlines)
        due = [self._deadlines[0][0]] if self._deadlines else []
        if (room_due := self._rooms.next_due()) is not None:
            due.append(room_due)
        if (reads_due := self.reads.tick(now)) is not None:
            due.append(reads_due)
        # An ask that cannot be sent gives its turn to the next at once.
        while in_turn := self._turns.next():
            for pull in in_turn:
                self._ask(pull, now)
        return min(due, default=None)

    # --- steps -------------------------------------------------------------------------------

    def _ask_in_turn(self, pull: OpenPull, now: float) -> None:
        if self._turns.take(pull, pull.session.instance):
            self._ask(pull, now)

    def _ask(self, pull: OpenPull, now: float) -> None:
        if self.reads.suspects(pull.session.instance):
            detail = f"an earlier READ from {pull.session.label} has not ended"
            self._pass_on(pull, Failure(MissReason.TRANSFER_FAILED, detail), now)
            return
        if pull.part.ask:
            self._release(pull)
        self._by_ask.pop(pull.part.ask, None)
        self._asks += 1
        pull.part.asks += 1
        pull.part.ask, pull.step = self._asks, Step.ASKED
        self._by_ask[pull.part.ask] = pull
        session = pull.session
        if not self._network.send(session.route, pull.as_ask(now, self._checks.integrity)):
            why = Failure(MissReason.PEER_DOWN, f"cannot send to {session.label}")
            self._pass_on(pull, why, now)

    def _wait_for_room(self, pull: OpenPull, now: float) -> None:
        """What its source has no room for now, it may have room for soon."""
        if not self._turns.wait_for_another(pull):
            self._turns.give_back(pull)
            self._rooms.wait(pull, now)

    def _pass_on(self, pull: OpenPull, why: Failure, now: float, *, release: bool = True) -> None:
        """Its source gives nothing more: go on with the next one, or end the pull."""
        pull.note(why)
        if release and pull.step is Step.ASKED:
            self._release(pull)
        self._leave_part(pull)
        # Nothing that becomes of sessions meanwhile, while one is sought, concerns it.
        pull.part, pull.step = Part(), Step.CHECKING
        session, _ = choose(pull.sources, self._want, now)
        if session is None:
            self.fail(pull, pull.why or why, release=False)
        else:
            self._begin_part(pull, session, now)

    def _begin_part(self, pull: OpenPull, session: Session, now: float) -> None:
        pull.session, pull.step = session, Step.WAITING
        if session.phase is Phase.UP:
            self._ask_in_turn(pull, now)

    def _confirm(self, pull: OpenPull) -> None:
        session = pull.session
        if session.phase is not Phase.UP:
            # Interrupted: the Confirm follows when the same instance answers again.
            return
        confirm = Confirm(session.instance, pull.part.ask, pull.part.lease, pull.wanted.content)
        if not self._network.send(session.route, confirm):
            self.fail(pull, Failure(MissReason.PEER_DOWN, f"cannot send to {session.label}"))

    def _end_part(self, pull: OpenPull, now: float) -> None:
        """The source has confirmed the bytes of a part, and whatever is checked can be."""
        why = outdated(self._weights, pull.wanted) or self._checks.objection(pull, now)
        if why is not None:
            self.fail(pull, why)
            return
        session = self._source_of_rest(pull, now)
        if session is None:
            missing = pull.missing()
            self._close(pull)
            self._answers.pulled(pull, now, missing)
            return
        self._answers.part_pulled(pull, now)
        self._leave_part(pull)
        pull.end_part()
        self._begin_part(pull, session, now)

    def _source_of_rest(self, pull: OpenPull, now: float) -> Session | None:
        """Whom to ask for what `pull` lacks when its part is done; None if that is the end."""
        if not pull.lacks() or not pull.divisible or pull.parts >= MAX_PARTS:
            return None
        if pull.part.short:
            return pull.session
        pull.note(Failure(MissReason.NOT_HELD, f"{pull.session.label} holds no more of it"))
        session, _ = choose(pull.sources, self._want, now)
        return session

    def _time_out(self, pull: OpenPull) -> None:
        waited = pull.deadline - pull.wanted.started
        detail = f"{pull.session.label}: still waiting for {pull.step.value} after {waited:.3g} s"
        # The bytes are here, but nobody says that they are good.
        late = pull.step is Step.CONFIRMING
        self.fail(pull, Failure(MissReason.LEASE_LOST if late else MissReason.TIMED_OUT, detail))

    def fail(
        self, pull: OpenPull, why: Failure, *, release: bool = True, broken_at: float = 0.0
    ) -> None:
        """End `pull`; only a READ that was given to an initiator keeps its slots."""
        held = pull.step is Step.READING
        if held:
            suspect = why.reason is not MissReason.ABORTED
            self.reads.leave(pull, suspect=suspect, broken_at=broken_at)
        # The Confirm ends its lease, unless it waits there for checksums.
        unanswered = pull.step is Step.CONFIRMING and pull.part.job is not None
        if release and (unanswered or pull.step in (Step.ASKED, Step.GRANTED, Step.READING)):
            self._release(pull)
        self._close(pull)
        self._answers.failed(pull.wanted, why, slots_held=held)

    def _close(self, pull: OpenPull) -> None:
        del self._open[pull.wanted.pull]
        self._leave_part(pull)
        pull.step = Step.OVER

    def _leave_part(self, pull: OpenPull) -> None:
        self._turns.give_back(pull)
        self._checks.drop(pull)
        self._by_ask.pop(pull.part.ask, None)
        self.reads.forget(pull)

    def _release(self, pull: OpenPull) -> None:
        """Best effort: a lease that hears nothing ends by its clock."""
        session = pull.session
        if session.phase is Phase.UP:
            self._network.send(session.route, Release(session.instance, pull.part.ask))
        elif pull.part.asked_of:
            self._turns.abandon(pull)

    # --- looking up --------------------------------------------------------------------------

    def _of(self, session: Session) -> list[OpenPull]:
        return [pull for pull in self._open.values() if pull.session is session]

    def _answered(self, session: Session, ask: int, step: Step) -> OpenPull | None:
        """The pull that an answer belongs to, if it waits for just that."""
        pull = self._by_ask.get(ask)
        if pull is None or pull.session is not session or pull.step is not step:
            self._counters.add("dropped_stale")
            return None
        return pull
