"""What the runner and the engines' processes say to each other: JSON lines over pipes."""

import msgspec

from mpkv.cluster.settings import Integrity

HELPERS = ("control", "target", "initiator")
# What all engines of a run are like. A pull takes some milliseconds, half of them its READ.
BLOCKS = 384
BLOCK_BYTES = 256 << 10
DEADLINE_S = 3.0


class Start(msgspec.Struct):
    """An engine's command line. `sources` are the addresses by which it reaches the others;
    `tag` makes its choices differ from those of its earlier lives."""

    name: str
    tag: str
    host: str
    port: int
    sources: dict[str, str]
    weights: int
    pulling: bool
    integrity: Integrity


# --- runner -> engine ------------------------------------------------------------------


class KillHelper(msgspec.Struct, tag="kill"):
    """With `aim_s` the helper dies that long after the engine's next pull has begun."""

    helper: str
    aim_s: float | None


class StopHelper(msgspec.Struct, tag="stop"):
    helper: str
    for_s: float
    aim_s: float | None


class Abandon(msgspec.Struct, tag="abandon"):
    """Stop the initiator in the middle of a READ, `aim_s` after it has begun, end its request,
    and store new blocks wherever there is room before the READ goes on."""

    for_s: float
    aim_s: float


class Fill(msgspec.Struct, tag="fill"):
    """Store so many blocks that nobody asks for; they evict others."""

    blocks: int


class Abort(msgspec.Struct, tag="abort"):
    """End all requests, most of them in the middle of their pulls."""

    aim_s: float | None


class Reset(msgspec.Struct, tag="reset"):
    """Every block is void. The weights are new, or those of before."""

    weights: int


class Verify(msgspec.Struct, tag="verify"):
    """Pull fresh blocks from every other engine until that has worked once with each."""

    round: int
    limit_s: float


class Settle(msgspec.Struct, tag="settle"):
    """Start nothing more, wait until nothing is in flight, and look for leaks."""

    limit_s: float


class Resume(msgspec.Struct, tag="resume"):
    """Pull again."""


class Leave(msgspec.Struct, tag="leave"):
    """Shut the helpers down and exit."""


Order = KillHelper | StopHelper | Abandon | Fill | Abort | Reset | Verify | Settle | Resume | Leave


# --- engine -> runner ------------------------------------------------------------------


class Counts(msgspec.Struct, tag="counts"):
    """Since the start of this life of the engine."""

    pulls: int = 0
    full: int = 0
    partial: int = 0
    compared: int = 0
    misses: dict[str, int] = {}

    def add(self, other: "Counts") -> None:
        self.pulls += other.pulls
        self.full += other.full
        self.partial += other.partial
        self.compared += other.compared
        for reason, count in other.misses.items():
            self.misses[reason] = self.misses.get(reason, 0) + count


class Wrong(msgspec.Struct, tag="wrong"):
    """A lookup said hit, and the bytes are not those of the key."""

    text: str


class Endless(msgspec.Struct, tag="endless"):
    """A request still waits although its deadline is long over."""

    text: str


class Verified(msgspec.Struct, tag="verified"):
    failed: list[str]


class Settled(msgspec.Struct, tag="settled"):
    """`endless` and `leaked` name what is still there; `fds` and `threads` are numbers of
    each process of the engine, by role."""

    endless: list[str]
    leaked: list[str]
    fds: dict[str, int]
    threads: dict[str, int]


Report = Counts | Wrong | Endless | Verified | Settled
