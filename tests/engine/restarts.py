"""The processes of one engine over restarts: who ends whom, and when what may be used again.

`explore` visits every state that any interleaving of their steps can reach: the supervisor's
watcher thread, the scheduler thread, control planes, targets and initiators, of which any may
crash at every point, as often as `FAULTS` allows. Each step takes effect at once.

A killed process is not gone at once: it may still push, pin and, above all, READ; only when it
is gone does its pidfd say so and can it be reaped.

Left out: peers, leases and deadlines (the joined model of the pull protocol has them), what a
READ brings, back-offs, and the engine's own death, with which every helper leaves. There is
one slot, one pull at a time and one pin in each life of a control plane; the slot and the pin
are explored apart, since nobody but the supervisor has to do with both. Steps are those of
engine/supervisor.py, engine/pulls.py, control/initiators.py and control/pulls.py.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

FAULTS = 2
USES = 2
RUNNING = ("alive", "dying")


class Control(NamedTuple):
    """A control plane with the rings of its generation; records name the use of the slot."""

    life: str = "alive"
    inbox: tuple[int, ...] = ()
    outbox: tuple[tuple[str, int], ...] = ()
    announced: tuple[int, ...] = ()
    initiator: int = 0
    pull: str = "none"
    use: int = 0
    pin: str = "none"


class Initiator(NamedTuple):
    """`use` is what its READ may still write."""

    generation: int
    life: str = "alive"
    use: int = 0
    done: bool = False


class State(NamedTuple):
    # What is explored: "slot" or "pin".
    part: str
    # The supervisor; generations and initiators count from 1, 0 is none.
    supervisor: str = "spawn target"
    generation: int = 1
    initiator: int = 0
    stopping: bool = False
    # What it shares with the scheduler.
    link: int = 0
    distrusted: bool = False
    dead: tuple[int, ...] = ()
    # The processes, and what the control plane counts in the ledger.
    targets: tuple[str, ...] = ()
    controls: tuple[Control, ...] = ()
    initiators: tuple[Initiator, ...] = ()
    pins: int = 0
    # The scheduler: the link it has in hand and for what; the slot and whose it is.
    intent: str = ""
    in_hand: int = 0
    use: int = 0
    lent: bool = False
    owner: int = 0
    retired: frozenset[int] = frozenset()
    touched: int = 0
    faults: int = FAULTS


Steps = Iterator[tuple[str, State]]
Flaws = frozenset[str]
Item = TypeVar("Item", str, Control, Initiator)


def put(items: tuple[Item, ...], number: int, item: Item) -> tuple[Item, ...]:
    return (*items[: number - 1], item, *items[number:])


def with_control(s: State, number: int, **changes: Any) -> State:
    control = s.controls[number - 1]._replace(**changes)
    return s._replace(controls=put(s.controls, number, control))


def with_initiator(s: State, number: int, **changes: Any) -> State:
    initiator = s.initiators[number - 1]._replace(**changes)
    return s._replace(initiators=put(s.initiators, number, initiator))


def supervisor_steps(s: State, flaws: Flaws) -> Steps:
    g = s.generation
    match s.supervisor:
        case "spawn target":
            yield "spawn target", s._replace(targets=(*s.targets, "alive"), supervisor="spawn")
        case "spawn":
            rings = s.controls[-1] if s.controls and "reuse rings" in flaws else Control()
            control = Control(inbox=rings.inbox, outbox=rings.outbox)
            yield "spawn control", s._replace(controls=(*s.controls, control), supervisor="link")
            if s.faults:
                ended = (*s.controls, Control("reaped"))
                fewer = s._replace(controls=ended, supervisor="undo", faults=s.faults - 1)
                yield "spawning fails", fewer._replace(targets=put(s.targets, g, "dying"))
        case "undo" if s.targets[g - 1] == "gone":
            following = s._replace(generation=g + 1, supervisor="spawn target")
            yield "reap target", following._replace(targets=put(s.targets, g, "reaped"))
        case "link":
            yield "link", s._replace(link=g, supervisor="watch")
        case "watch":
            yield from watch_steps(s, flaws)
        case "announce":
            news = (*s.controls[g - 1].announced, s.initiator)
            yield "announce", with_control(s, g, announced=news)._replace(supervisor="watch")
        case "unlink":
            link = s.link if "tell before the unlinking" in flaws else 0
            yield "unlink", s._replace(link=link, supervisor="kill")
        case "kill":
            yield "kill", killed(s, flaws)._replace(supervisor="reap")
        case "reap":
            yield from reap_steps(s, flaws)
        case "zero":
            yield "zero pins", s._replace(pins=0, supervisor="tell")
        case "tell":
            dead = s.dead if g in (*s.dead, *s.retired) else (*s.dead, g)
            end = s._replace(dead=dead, supervisor="over", initiator=0)
            yield "tell", end
        case "over" if s.stopping:
            if s.link:
                yield "unlink late", s._replace(link=0)
        case "over":
            following = s._replace(generation=g + 1, supervisor="spawn target", link=0)
            yield "begin anew", following


def watch_steps(s: State, flaws: Flaws) -> Steps:
    g = s.generation
    yield "stop", s._replace(stopping=True, supervisor="unlink")
    if s.distrusted:
        yield "hear of distrust", s._replace(distrusted=False, supervisor="unlink")
    target = "alive" if "ignore the target" in flaws else s.targets[g - 1]
    over = "gone" in (s.controls[g - 1].life, target)
    if over:
        yield "see the end", s._replace(supervisor="unlink")
    if not s.initiator:
        number = len(s.initiators) + 1
        spawned = s._replace(initiators=(*s.initiators, Initiator(g)), initiator=number)
        yield "spawn initiator", spawned._replace(supervisor="announce")
    elif s.initiators[s.initiator - 1].life == "gone" and not over:
        yield "reap initiator", with_initiator(s, s.initiator, life="reaped")._replace(initiator=0)
    elif s.initiators[s.initiator - 1].life == "dying" and "announce before the reap" in flaws:
        yield "replace initiator", s._replace(initiator=0)


def killed(s: State, flaws: Flaws) -> State:
    """SIGKILL to all of the generation."""
    g = s.generation
    if "zero pins before the reap" in flaws:
        s = s._replace(pins=0)
    if "tell before the reap" in flaws:
        s = s._replace(dead=(*s.dead, g))
    if s.initiator and s.initiators[s.initiator - 1].life == "alive":
        s = with_initiator(s, s.initiator, life="dying")
    if s.controls[g - 1].life == "alive":
        s = with_control(s, g, life="dying")
    if s.targets[g - 1] == "alive":
        s = s._replace(targets=put(s.targets, g, "dying"))
    return s


def reap_steps(s: State, flaws: Flaws) -> Steps:
    g, k = s.generation, s.initiator
    if k and s.initiators[k - 1].life != "reaped":
        if s.initiators[k - 1].life == "gone":
            yield "reap initiator", with_initiator(s, k, life="reaped")
    elif s.controls[g - 1].life != "reaped":
        if s.controls[g - 1].life == "gone":
            yield "reap control", with_control(s, g, life="reaped")
    elif s.targets[g - 1] != "reaped":
        if s.targets[g - 1] == "gone":
            yield "reap target", s._replace(targets=put(s.targets, g, "reaped"))
    else:
        skips = "zero pins before the reap" in flaws
        yield "all are reaped", s._replace(supervisor="tell" if skips else "zero")


def scheduler_steps(s: State, flaws: Flaws) -> Steps:
    if s.intent == "use":
        g = s.in_hand
        free = s._replace(intent="", in_hand=0, touched=g if g in s.retired else 0)
        if s.controls[g - 1].outbox:
            yield from take_steps(free, g)
        else:
            use = s.use + 1
            sent = with_control(free, g, inbox=(*s.controls[g - 1].inbox, use))
            yield "send a pull", sent._replace(use=use, lent=True, owner=g)
        return
    if s.intent == "distrust":
        yield "distrust", s._replace(intent="", in_hand=0, link=0, distrusted=True)
        return
    if s.dead:
        g = s.dead[0]
        retired = s._replace(dead=s.dead[1:], retired=s.retired | {g})
        if s.owner == g and "keep the pulls of the dead" not in flaws:
            retired = retired._replace(lent=False, owner=0)
        yield "retire", retired
    if s.link and (s.controls[s.link - 1].outbox or can_send(s)):
        yield "look at the link", s._replace(intent="use", in_hand=s.link)
    if s.link and s.faults:
        distrusts = s._replace(intent="distrust", in_hand=s.link, faults=s.faults - 1)
        yield "decide to distrust", distrusts


def can_send(s: State) -> bool:
    return s.part == "slot" and not s.lent and s.use < USES


def take_steps(s: State, g: int) -> Steps:
    """Take one record; those of a pull that is not open with `g` are dropped."""
    control = s.controls[g - 1]
    kind, use = control.outbox[0]
    s = with_control(s, g, outbox=control.outbox[1:])
    if s.owner == g and use == s.use and kind != "held":
        s = s._replace(lent=False, owner=0)
    yield f"take {kind}", s


def control_steps(s: State, number: int, flaws: Flaws) -> Steps:
    c = s.controls[number - 1]
    if c.life not in RUNNING:
        return
    k = c.initiator
    if c.inbox and c.pull == "none":
        taken, use = with_control(s, number, inbox=c.inbox[1:]), c.inbox[0]
        if k:
            reading = with_control(taken, number, pull="reading", use=use)
            yield "post a READ", with_initiator(reading, k, use=use, done=False)
        else:
            yield "fail a pull", with_control(taken, number, outbox=(*c.outbox, ("failed", use)))
    if k and c.pull == "reading" and s.initiators[k - 1].done:
        pulled = (*c.outbox, ("pulled", c.use))
        ended = with_control(s, number, outbox=pulled, pull="none", use=0)
        yield "answer a pull", with_initiator(ended, k, use=0, done=False)
    if k and s.initiators[k - 1].life in ("gone", "reaped"):
        yield "miss the initiator", without_initiator(s, number, flaws)
    if k and s.initiators[k - 1].life == "alive" and s.faults:
        fewer = with_initiator(s, k, life="dying")._replace(faults=s.faults - 1)
        yield "end the initiator", without_initiator(fewer, number, flaws)
    if c.announced:
        adopted = without_initiator(s, number, flaws)
        c = adopted.controls[number - 1]
        returns = c.pull == "held" and "return nothing" not in flaws
        back = (("returned", c.use),) if returns else ()
        yield (
            "adopt an initiator",
            with_control(
                adopted,
                number,
                outbox=(*c.outbox, *back),
                announced=c.announced[1:],
                initiator=c.announced[0],
                pull="none",
                use=0,
            ),
        )
    if c.pin == "none" and s.part == "pin":
        yield "pin", with_control(s, number, pin="held")._replace(pins=s.pins + 1)
    if c.pin == "held":
        # An unpin of a pin that is not there is refused.
        yield "unpin", with_control(s, number, pin="over")._replace(pins=max(s.pins - 1, 0))


def without_initiator(s: State, number: int, flaws: Flaws) -> State:
    """A pull that is being READ fails, and holds its slots until the next initiator is up."""
    c = s.controls[number - 1]
    if c.pull != "reading":
        return with_control(s, number, initiator=0)
    held = (*c.outbox, ("held", c.use))
    if "return at the kill" in flaws:
        held = (*held, ("returned", c.use))
        return with_control(s, number, initiator=0, outbox=held, pull="none", use=0)
    return with_control(s, number, initiator=0, outbox=held, pull="held")


def process_steps(s: State, flaws: Flaws) -> Steps:
    """READs end; processes crash, leave with others, and are gone some time after."""
    for number, life in enumerate(s.targets, 1):
        for label, then in ends(life, s.faults):
            left = s.faults - (label == "crashes")
            yield f"target {label}", s._replace(targets=put(s.targets, number, then), faults=left)
    for number, control in enumerate(s.controls, 1):
        for label, then in ends(control.life, s.faults):
            left = s.faults - (label == "crashes")
            yield f"control {label}", with_control(s, number, life=then)._replace(faults=left)
        yield from control_steps(s, number, flaws)
    for number, initiator in enumerate(s.initiators, 1):
        for label, then in ends(initiator.life, s.faults):
            left = s.faults - (label == "crashes")
            yield f"initiator {label}", with_initiator(s, number, life=then)._replace(faults=left)
        if initiator.life == "alive" and initiator.use and not initiator.done:
            yield "a READ ends", with_initiator(s, number, done=True)
        if initiator.life == "alive" and s.controls[initiator.generation - 1].life == "gone":
            yield "initiator leaves", with_initiator(s, number, life="dying")


def ends(life: str, faults: int) -> Iterator[tuple[str, str]]:
    if life == "alive" and faults:
        yield "crashes", "dying"
    if life == "dying":
        yield "is gone", "gone"


def check(s: State) -> None:
    """What must hold in every state."""
    for lives in (s.targets, [c.life for c in s.controls], [i.life for i in s.initiators]):
        assert sum(life in RUNNING for life in lives) <= 1, "there is one of each at a time"
    for initiator in s.initiators:
        if initiator.life in RUNNING and initiator.use and not initiator.done:
            still = s.lent and s.use == initiator.use
            assert still, "a slot is lent while a READ may write it"
    for control in s.controls:
        if control.life in RUNNING and control.pin == "held":
            assert s.pins, "a pin counts while its control plane may run"
    if s.supervisor == "spawn":
        assert not s.pins, "a control plane begins without pins"
    assert not s.touched, "rings of a retired generation are not touched"
    assert s.lent == bool(s.owner), "a lent slot is somebody's"


def check_settled(s: State) -> None:
    """What must hold when nothing happens unless somebody stops the engine."""
    control, initiator = s.controls[s.generation - 1], s.initiators[-1]
    assert s.link == s.generation, "the scheduler has the living generation's rings"
    lives = {control.life, s.targets[s.generation - 1], initiator.life}
    assert lives == {"alive"}, "all helpers run"
    assert control.initiator == s.initiator == len(s.initiators), "the initiator is in use"
    assert (s.lent, s.pins, s.dead) == (False, 0, ()), "nothing is held for the dead"


def check_end(s: State) -> None:
    """What must hold when the engine has stopped."""
    lives = {*s.targets, *(c.life for c in s.controls), *(i.life for i in s.initiators)}
    assert lives == {"reaped"}, "every process has been reaped"
    assert (s.link, s.lent, s.pins, s.dead) == (0, False, 0, ()), "nothing is held in the end"


def tidy(s: State) -> State:
    """The same state without what nobody will look at: fewer states to visit."""
    controls = []
    for number, c in enumerate(s.controls, 1):
        if c.life in RUNNING:
            controls.append(c)
        elif number in s.retired and s.in_hand != number and number < len(s.controls):
            controls.append(Control(c.life))
        else:
            controls.append(Control(c.life, c.inbox, c.outbox))
    in_use = {c.initiator for c in controls}
    initiators = [
        Initiator(0, "reaped") if i.life == "reaped" and number not in in_use else i
        for number, i in enumerate(s.initiators, 1)
    ]
    return s._replace(controls=tuple(controls), initiators=tuple(initiators))


def explore(part: str, flaws: Flaws = frozenset()) -> int:
    """Check all reachable states; their number. An AssertionError carries the way there."""
    came_from: dict[State, tuple[str, State] | None] = {State(part): None}
    frontier = deque([State(part)])  # nearest first: the way to a violation is a shortest one
    while frontier:
        s = frontier.popleft()
        following = [
            *supervisor_steps(s, flaws),
            *scheduler_steps(s, flaws),
            *process_steps(s, flaws),
        ]
        labels = {label for label, _ in following}
        try:
            check(s)
            if labels == {"stop"}:
                check_settled(s)
            elif not labels:
                check_end(s)
        except AssertionError as error:
            raise AssertionError(f"{error.args[0]}; after {way_to(s, came_from)}") from None
        for label, then in following:
            then = tidy(then)
            if then not in came_from:
                came_from[then] = (label, s)
                frontier.append(then)
    return len(came_from)


def way_to(state: State, came_from: dict[State, tuple[str, State] | None]) -> str:
    labels = []
    step = came_from[state]
    while step is not None:
        labels.append(step[0])
        step = came_from[step[1]]
    return ", ".join(reversed(labels))
