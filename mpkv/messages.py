"""What the processes of one engine say to each other, grouped by receiver.

Records travel as msgpack over the rings of `mpkv.memory`. Blocks, indexes and slots
travel packed in native byte order, since all readers are on one machine:

- *block ids* and *indexes*: unsigned 32-bit each;
- *slots*: unsigned 64-bit each, `generation << 32 | block id` (see `mpkv.memory`);
- *keys*: concatenated keys of the ledger's `key_size` bytes each.

Times are seconds of `time.monotonic()`, which all processes of a machine share.

A record with more fields than its type is refused: a decoder that skips what it does not
know raises RecursionError, which no reader expects, when that nests deeply.
"""

import enum

import msgspec

from mpkv.cluster.settings import Integrity


class MissReason(enum.StrEnum):
    """Why a pull ended without blocks; the label of the miss counters."""

    NOT_HELD = "not_held"
    REFUSED = "refused"
    TIMED_OUT = "timed_out"
    LEASE_LOST = "lease_lost"
    TRANSFER_FAILED = "transfer_failed"
    NO_SPACE = "no_space"
    QUEUE_FULL = "queue_full"
    PEER_DOWN = "peer_down"
    HELPERS_DOWN = "helpers_down"
    ABORTED = "aborted"
    CACHE_RESET = "cache_reset"
    CORRUPTED = "corrupted"
    CONTENT = "content"


class Compatibility(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What two engines must agree on before they may share a block.

    Equal records mean that equal keys name equal bytes, laid out equally, where the weights
    are equal: what those are changes while an engine lives. `content` is the operator's label.
    """

    model: str
    content: str
    revision: str
    dtype: str
    cache_dtype: str
    kv_layout: str
    tokens_per_block: tuple[int, ...]
    blocks_per_chunk: int
    block_bytes: int
    tensor_parallel: int
    pipeline_parallel: int
    prefill_context_parallel: int
    decode_context_parallel: int
    hash_algorithm: str
    hash_seed: str
    key_size: int


class Tier(msgspec.Struct, frozen=True):
    """The data segment: `blocks` rows of `block_bytes` bytes, by descriptor `fd`."""

    fd: int
    blocks: int
    block_bytes: int


class RingEnds(msgspec.Struct, frozen=True):
    """Descriptors of one ring and of the eventfd that wakes its consumer (-1: never)."""

    ring_fd: int
    wake_fd: int


# --- what a helper is started with ---------------------------------------------------


class Bounds(msgspec.Struct, frozen=True):
    """When a helper counts as broken although it runs; only tests use other figures.

    Helpers beat every `beat_s` and look at each other as often. After `looks` looks at the
    same beat a helper hangs; before its first one after `start_looks`, which is longer than
    `mpkv.registration.lifeline` gives a start. A registration process has 22 MB of its own
    and 70 KB more for each peer, the control plane drops its peers' connections at
    `control_memory`: it is what they may make it use.
    """

    beat_s: float = 1.0
    looks: int = 10
    start_looks: int = 60
    registration_memory: int = 1 << 30
    control_memory: int = 512 << 20


class ControlStart(msgspec.Struct, frozen=True):
    """`instance` names this life of the control plane; it changes with every restart.

    `supervisor_fd` is a SOCK_SEQPACKET socket on which `InitiatorUp` messages arrive.
    `peers` are `host:port` strings to connect and warm at start. The engine has one ring to
    the control plane for each of its threads that pulls.
    """

    node: str
    instance: str
    listen: str
    port: int
    advertise: str
    peers: tuple[str, ...]
    compatibility: Compatibility
    tier: Tier
    ledger_fd: int
    engine_pidfd: int
    target_pidfd: int
    supervisor_fd: int
    wake_fd: int
    from_engine: tuple[RingEnds, ...]
    to_engine: RingEnds
    from_target: RingEnds
    deadline_s: float
    integrity: Integrity
    trace_dir: str
    bounds: Bounds = Bounds()


class RegistrationStart(msgspec.Struct, frozen=True):
    """For a target (`role="target"`) or an initiator (`role="initiator"`).

    A target has no `from_control`; its `from_control.ring_fd` is -1. It is started
    before the control plane, so its `control_pidfd` is -1 and it watches the engine
    only; an initiator watches both, and shares large READs among `lanes` agents.
    """

    role: str
    node: str
    agent: str
    tier: Tier
    backends: tuple[str, ...]
    engine_pidfd: int
    control_pidfd: int
    wake_fd: int
    from_control: RingEnds
    to_control: RingEnds
    trace_dir: str
    ledger_fd: int
    lanes: int = 1
    bounds: Bounds = Bounds()


class InitiatorUp(msgspec.Struct, frozen=True):
    """Sent to the control plane with SCM_RIGHTS: `(to_ring, to_wake, from_ring, pidfd)`.

    Generation `n` says also that every earlier initiator has been reaped: whatever
    READs it had are over, and their slots may be used again.
    """

    generation: int


# --- engine -> control plane ---------------------------------------------------------


class KeyGroup(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The keys of one KV-cache group, in token order.

    `tokens_per_key` places them. `window` is 0 for full attention; otherwise only the
    last `window` keys before the end of the hit are of use.
    """

    keys: bytes
    tokens_per_key: int
    window: int


class Pull(msgspec.Struct, tag="pull", array_like=True, frozen=True, forbid_unknown_fields=True):
    """Fetch what `peer` (`host:port`) holds of `groups` into `slots`; what it does not hold
    may come from `also`, the other ranks of its node.

    The answer is any number of `Pulled` with `more`, then exactly one `Pulled` without, or
    one `PullFailed`. Indexes in the answers count through the keys of all groups in order.
    All groups start at the same token; a group without keys counts as satisfied. `epoch` and
    `content` are those of the ledger when it began.
    """

    pull: int
    request: str
    peer: str
    groups: tuple[KeyGroup, ...]
    slots: bytes
    epoch: int
    started: float
    deadline: float
    also: tuple[str, ...] = ()
    content: bytes = b""


class CancelPull(
    msgspec.Struct, tag="cancel", array_like=True, frozen=True, forbid_unknown_fields=True
):
    """The request is gone; end the pull with `PullFailed(ABORTED)` as soon as may be."""

    pull: int


ToControl = Pull | CancelPull


# --- control plane -> engine ---------------------------------------------------------


class Pulled(
    msgspec.Struct, tag="pulled", array_like=True, frozen=True, forbid_unknown_fields=True
):
    """`slots[i]` now holds the confirmed bytes of key `indexes[i]`.

    Slots are used in the order in which the pull brought them, by one part after the other.
    With `more` the pull goes on; the last part says in `missing` why what was asked for and
    never given was not.
    """

    pull: int
    indexes: bytes
    slots: bytes
    granted: float
    read: float
    confirmed: float
    more: bool = False
    missing: MissReason | None = None


class PullFailed(
    msgspec.Struct, tag="failed", array_like=True, frozen=True, forbid_unknown_fields=True
):
    """The pull ended; what it has not brought until now is missed. While `slots_held`, a READ
    may still write its other slots: they come back with `SlotsReturned` and may not be touched
    before."""

    pull: int
    reason: MissReason
    detail: str
    slots_held: bool


class SlotsReturned(
    msgspec.Struct, tag="returned", array_like=True, frozen=True, forbid_unknown_fields=True
):
    """No READ of this failed pull can write any more."""

    pull: int


ToEngine = Pulled | PullFailed | SlotsReturned


# --- control plane -> initiator ------------------------------------------------------


class AddPeer(msgspec.Struct, tag="add", array_like=True, frozen=True, forbid_unknown_fields=True):
    """Register and warm the peer's target, whose tier starts at address `base`."""

    instance: str
    agent: str
    metadata: bytes
    base: int
    blocks: int
    block_bytes: int


class RemovePeer(
    msgspec.Struct, tag="remove", array_like=True, frozen=True, forbid_unknown_fields=True
):
    instance: str


class Read(msgspec.Struct, tag="read", array_like=True, frozen=True, forbid_unknown_fields=True):
    """READ the peer's `remote` block ids into the own tier's `local` block ids."""

    read: int
    instance: str
    remote: bytes
    local: bytes


ToInitiator = AddPeer | RemovePeer | Read


# --- registration -> control plane ---------------------------------------------------


class TargetReady(
    msgspec.Struct, tag="target", array_like=True, frozen=True, forbid_unknown_fields=True
):
    """The tier is registered; a peer needs this to READ from it."""

    agent: str
    metadata: bytes
    base: int


class InitiatorReady(
    msgspec.Struct, tag="initiator", array_like=True, frozen=True, forbid_unknown_fields=True
):
    agent: str


class PeerAdded(
    msgspec.Struct, tag="added", array_like=True, frozen=True, forbid_unknown_fields=True
):
    instance: str
    seconds: float


class PeerFailed(
    msgspec.Struct, tag="unadded", array_like=True, frozen=True, forbid_unknown_fields=True
):
    """The peer could not be added, or NIXL has lost it since. READs need AddPeer again."""

    instance: str
    detail: str


class ReadDone(
    msgspec.Struct, tag="done", array_like=True, frozen=True, forbid_unknown_fields=True
):
    read: int
    seconds: float


class ReadFailed(
    msgspec.Struct, tag="unread", array_like=True, frozen=True, forbid_unknown_fields=True
):
    """`posted` False: it never started and its slots are free. True: parts of it may
    still land, and its slots are unsafe until this initiator has been reaped."""

    read: int
    detail: str
    posted: bool


FromRegistration = TargetReady | InitiatorReady | PeerAdded | PeerFailed | ReadDone | ReadFailed
