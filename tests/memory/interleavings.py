"""One block, its engine, a control plane that pins it and a reader that only looks.

`explore` visits every state that any interleaving of their atomic steps can reach, with
the control plane dying at every point. It checks the logic of the protocol: each step
takes effect at once and in order. Weak memory orders are not modelled; for those there
are the comments in the C and the runs under ThreadSanitizer.

Steps are those of engine.c and table.c. The index is left out on purpose: a hint may be
stale at any time, so here everyone always finds the block hinted.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

KEYS = ("aa", "bb")  # two words each, written one at a time
WANTED = "aa"
GENERATIONS = 2


class Word(NamedTuple):
    generation: int = 0
    state: str = "free"
    control_pins: int = 0


class State(NamedTuple):
    word: Word = Word()
    key: str = "--"
    content: str = "--"
    # What the engine has published in each generation; nobody reads it but the checks.
    published: tuple[str, ...] = ("",)
    engine: str = "free"
    engine_key: str = ""
    engine_saw: Word = Word()
    control: str = "start"
    control_saw: Word = Word()
    control_key: str = ""
    pins_left: int = 2
    zeroed: bool = False
    finder: str = "start"
    finder_saw: Word = Word()
    finder_key: str = ""


Steps = Iterator[tuple[str, State]]
Flaws = frozenset[str]


def engine_steps(s: State, flaws: Flaws) -> Steps:
    """allocate, fill, write the key's two words, publish; then evict, or free and drain."""
    word, idle = s.word, s.word.control_pins == 0
    match s.engine:
        case "free" if word.generation < GENERATIONS:
            new = Word(word.generation + 1, "filling")
            yield "allocate", s._replace(word=new, engine="filling", published=(*s.published, ""))
        case "filling":
            for key in KEYS:
                yield "fill", s._replace(content=key, engine_key=key, engine="first key word")
        case "first key word":
            key = s.engine_key[0] + s.key[1]
            yield "write key", s._replace(key=key, engine="second key word")
        case "second key word":
            yield "write key", s._replace(key=s.engine_key, engine="publish")
        case "publish":
            published = (*s.published[:-1], s.engine_key)
            ready = word._replace(state="ready")
            yield "publish", s._replace(word=ready, published=published, engine="ready")
        case "ready":
            if (idle or "evict pinned" in flaws) and word.generation < GENERATIONS:
                yield "evict", s._replace(word=word._replace(state="draining"), engine="evicted")
            yield "free: load", s._replace(engine="retire", engine_saw=word)
            if "key while ready" in flaws:
                yield "rewrite", s._replace(engine="first key word", engine_key="bb")
        case "evicted":
            new = Word(word.generation + 1, "filling", word.control_pins)
            yield "reuse", s._replace(word=new, engine="filling", published=(*s.published, ""))
        case "retire" if word != s.engine_saw:
            yield "free: swap failed", s._replace(engine_saw=word)
        case "retire":
            yield "free", s._replace(word=word._replace(state="draining"), engine="draining")
        case "draining" if idle or "reclaim pinned" in flaws:
            yield "reclaim", s._replace(word=word._replace(state="free"), engine="free")
    if (s.control == "dead" and not s.zeroed) or "zero pins of the living" in flaws:
        yield "zero control pins", s._replace(word=word._replace(control_pins=0), zeroed=True)


def control_steps(s: State, flaws: Flaws) -> Steps:
    """pin, compare the key word by word, use the bytes, unpin; or die anywhere."""
    word = s.word
    match s.control:
        case "start" if s.pins_left > 0:
            yield "pin: load", s._replace(control="pin", control_saw=word)
        case "pin" if s.control_saw.state != "ready":
            yield "miss", s._replace(control="start", pins_left=s.pins_left - 1)
        case "pin" if word != s.control_saw and "pin without swap" not in flaws:
            yield "pin: swap failed", s._replace(control_saw=word)
        case "pin":
            pinned = s.control_saw._replace(control_pins=s.control_saw.control_pins + 1)
            following = "use" if "believe the hint" in flaws else "compare"
            yield "pin", s._replace(word=pinned, control_saw=pinned, control=following)
        case "compare" | "compare second word":
            key = s.control_key + s.key[len(s.control_key)]
            following = "compare second word"
            if len(key) == 2:
                following, key = ("use" if key == WANTED else "unpin"), ""
            yield "read key", s._replace(control_key=key, control=following)
        case "use":
            yield "use", s._replace(control="unpin")
        case "unpin" if word.generation == s.control_saw.generation and word.control_pins > 0:
            left = word._replace(control_pins=word.control_pins - 1)
            yield "unpin", s._replace(word=left, control="start", pins_left=s.pins_left - 1)
        case "unpin":
            yield "unpin refused", s._replace(control="start", pins_left=s.pins_left - 1)
    if s.control != "dead":
        yield "control dies", s._replace(control="dead")


def finder_steps(s: State, flaws: Flaws) -> Steps:
    """load the word, read the key's two words, look at the word again."""
    match s.finder:
        case "start" if s.word.state == "ready":
            yield "find: load", s._replace(finder="read", finder_saw=s.word)
        case "read":
            key = s.finder_key + s.key[len(s.finder_key)]
            following = "check" if len(key) == 2 else "read"
            yield "find: key", s._replace(finder_key=key, finder=following)
        case "check":
            saw, now = s.finder_saw, s.word
            same = (saw.generation, saw.state) == (now.generation, now.state)
            hit = s.finder_key == WANTED and (same or "look once" in flaws)
            yield "find: check", s._replace(finder="hit" if hit else "miss")


def check(s: State) -> None:
    """What must hold in every state."""
    word = s.word
    if s.control == "use":
        assert s.content == WANTED, "a pinned block's bytes are those of its key"
        assert word.state in ("ready", "draining"), "a pinned block is not reused"
        assert word.generation == s.control_saw.generation, "a pin ends before its generation"
    if s.finder == "hit":
        assert s.published[s.finder_saw.generation] == WANTED, "a hit was published"
    if word.state == "ready":
        assert s.key == s.published[word.generation], "a ready block's key is what was published"
    held = s.control in ("compare", "compare second word", "use", "unpin")
    if s.control != "dead":
        assert word.control_pins == held, "the count is the pins that are held"
    if word.state in ("free", "filling"):
        assert word.control_pins == 0, "a block in nobody's use has no pins"


def check_end(s: State) -> None:
    """What must hold when nobody can do anything more."""
    assert s.word == Word(GENERATIONS, "free"), "every block is free in the end, without pins"


def explore(flaws: Flaws = frozenset()) -> int:
    """Check all reachable states; their number. An AssertionError carries the way there."""
    came_from: dict[State, tuple[str, State] | None] = {State(): None}
    frontier = deque([State()])  # nearest first: the way to a violation is a shortest one
    parts: tuple[Callable[[State, Flaws], Steps], ...]
    parts = (engine_steps, control_steps, finder_steps)
    while frontier:
        state = frontier.popleft()
        following = [step for part in parts for step in part(state, flaws)]
        try:
            check(state)
            if not following:
                check_end(state)
        except AssertionError as error:
            raise AssertionError(f"{error.args[0]}; after {way_to(state, came_from)}") from None
        for label, then in following:
            if then not in came_from:
                came_from[then] = (label, state)
                frontier.append(then)
    return len(came_from)


def way_to(state: State, came_from: dict[State, tuple[str, State] | None]) -> str:
    labels = []
    step = came_from[state]
    while step is not None:
        labels.append(step[0])
        step = came_from[step[1]]
    return ", ".join(reversed(labels))
