"""What control planes say to each other, and the bounds on it.

A message is two frames: `PROTOCOL`, so that builds of different versions can tell each
other apart before they decode anything, and one msgpack struct. Lists of keys, block ids
and index runs travel packed in it; integers in them are little-endian, as they lie in the
memory of every CPU that mpkv runs on.
"""

import array
import enum
import itertools
from typing import Annotated

import msgspec

from mpkv.cluster.settings import Integrity
from mpkv.errors import WireRefused
from mpkv.messages import Compatibility, KeyGroup

PROTOCOL = b"mpkv/3"

MAX_KEYS = 131_072
MAX_GROUPS = 64
MAX_KEY_SIZE = 64
MAX_TEXT = 256
MAX_DETAIL = 1024
# NIXL's metadata of one registered region has a few hundred bytes.
MAX_METADATA = 64 << 10
MAX_LEASE_MS = 60_000
# Of one peer at one source; a peer keeps further asks back instead of having them denied.
MAX_LEASES = 256
# Around the keys of a message: its other fields and msgpack's own bytes.
MAX_OVERHEAD = 64 << 10

Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
Detail = Annotated[str, msgspec.Meta(max_length=MAX_DETAIL)]
# Names of lives and agents go into logs and to NIXL as they are.
Instance = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT, pattern=r"^[ -~]+\Z")]
Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Packed = Annotated[bytes, msgspec.Meta(max_length=MAX_KEYS * 8)]
# What the weights are, as the ledger has it; empty while its sender does not know.
Content = Annotated[bytes, msgspec.Meta(max_length=16)]


class Denial(enum.StrEnum):
    """Why a source does not look an ask up at all."""

    UNKNOWN_SESSION = "unknown_session"
    CONTENT = "content"
    TARGET_DOWN = "target_down"
    QUOTA = "quota"
    MALFORMED = "malformed"


class Loss(enum.StrEnum):
    """Why bytes that were READ under a lease do not count."""

    EXPIRED = "expired"
    EPOCH = "epoch"
    CONTENT = "content"
    TARGET_DOWN = "target_down"
    PINS_LOST = "pins_lost"
    UNCHECKED = "unchecked"
    UNKNOWN = "unknown"


# --- destination -> source -------------------------------------------------------------


class Hello(msgspec.Struct, tag="hello", array_like=True, frozen=True, forbid_unknown_fields=True):
    """`address` is where the sender's own control plane listens, `nixl` the version of NIXL
    that will READ, "" if unknown."""

    instance: Instance
    node: Text
    address: Text
    compatibility: Compatibility
    content: Content
    nixl: Text = ""


class Ask(msgspec.Struct, tag="ask", array_like=True, frozen=True, forbid_unknown_fields=True):
    """Pin what `to` holds of `groups`, at most `limit` blocks, for `lease_ms`, if its `content`
    is the asker's; have checksums ready for the Confirm, of the blocks that `integrity` says."""

    to: Instance
    ask: Number
    groups: Annotated[tuple[KeyGroup, ...], msgspec.Meta(min_length=1, max_length=MAX_GROUPS)]
    limit: Number
    lease_ms: Number
    content: Content
    integrity: Integrity = Integrity.OFF


class Confirm(
    msgspec.Struct, tag="confirm", array_like=True, frozen=True, forbid_unknown_fields=True
):
    """The READ is over: was every pin of `lease` held until now? Ends the lease."""

    to: Instance
    ask: Number
    lease: Number
    content: Content


class Release(
    msgspec.Struct, tag="release", array_like=True, frozen=True, forbid_unknown_fields=True
):
    """The sender has given `ask` up, answered or not."""

    to: Instance
    ask: Number


class Ping(msgspec.Struct, tag="ping", array_like=True, frozen=True, forbid_unknown_fields=True):
    to: Instance
    number: Number


ToSource = Hello | Ask | Confirm | Release | Ping


# --- source -> destination -------------------------------------------------------------


class Difference(msgspec.Struct, array_like=True, frozen=True):
    """A field in which two engines differ: the source's value and the destination's."""

    field: Text
    source: Text
    destination: Text


class Welcome(
    msgspec.Struct, tag="welcome", array_like=True, frozen=True, forbid_unknown_fields=True
):
    """The session is open. `agent`, `metadata` and `base` let an initiator READ the tier."""

    instance: Instance
    node: Text
    agent: Instance
    metadata: Annotated[bytes, msgspec.Meta(max_length=MAX_METADATA)]
    base: Annotated[int, msgspec.Meta(ge=0)]
    blocks: Annotated[int, msgspec.Meta(gt=0, lt=1 << 31)]
    block_bytes: Annotated[int, msgspec.Meta(gt=0, lt=1 << 40)]
    content: Content


class Refuse(
    msgspec.Struct, tag="refuse", array_like=True, frozen=True, forbid_unknown_fields=True
):
    """These two engines may not share; `detail` says so without `differing`."""

    instance: Instance
    node: Text
    differing: Annotated[tuple[Difference, ...], msgspec.Meta(max_length=64)]
    detail: Detail


class Busy(msgspec.Struct, tag="busy", array_like=True, frozen=True, forbid_unknown_fields=True):
    """Not now; say hello again later."""

    instance: Instance
    detail: Detail


class Grant(msgspec.Struct, tag="grant", array_like=True, frozen=True, forbid_unknown_fields=True):
    """Blocks for the keys at `runs`, pinned under `lease`; nothing held: both empty.

    `runs` are pairs of unsigned 32-bit (first index, count); `blocks` one unsigned
    32-bit block id per key in them, in order. `short`: the source holds more of what was
    asked for and has no room for it now.
    """

    ask: Number
    lease: Number
    runs: Packed
    blocks: Packed
    content: Content
    short: bool = False


class Denied(
    msgspec.Struct, tag="denied", array_like=True, frozen=True, forbid_unknown_fields=True
):
    """The answer to an Ask, or to anything else for a session that is not known (ask 0)."""

    instance: Instance
    ask: Number
    reason: Denial
    detail: Detail


class Confirmed(
    msgspec.Struct, tag="confirmed", array_like=True, frozen=True, forbid_unknown_fields=True
):
    """`checksums`: one unsigned 64-bit number for each block that the Ask wanted checked, in
    the order of the grant."""

    ask: Number
    lease: Number
    checksums: Packed = b""


class NotConfirmed(
    msgspec.Struct, tag="unconfirmed", array_like=True, frozen=True, forbid_unknown_fields=True
):
    ask: Number
    lease: Number
    reason: Loss


class Pong(msgspec.Struct, tag="pong", array_like=True, frozen=True, forbid_unknown_fields=True):
    instance: Instance
    number: Number


ToDestination = Welcome | Refuse | Busy | Grant | Denied | Confirmed | NotConfirmed | Pong


# --- bytes and back --------------------------------------------------------------------

_encode = msgspec.msgpack.Encoder().encode
_to_source: msgspec.msgpack.Decoder[ToSource] = msgspec.msgpack.Decoder(ToSource)
_to_destination: msgspec.msgpack.Decoder[ToDestination] = msgspec.msgpack.Decoder(ToDestination)


def max_message(key_size: int) -> int:
    """The longest frame that a well-behaved peer sends, in bytes."""
    return MAX_KEYS * max(key_size, 8) + MAX_METADATA + MAX_OVERHEAD


def encode(message: ToSource | ToDestination) -> bytes:
    return _encode(message)


def decode_to_source(body: bytes, key_size: int) -> ToSource:
    """Raises WireRefused for anything that a well-behaved destination would not send."""
    try:
        message = _to_source.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireRefused(f"not a message for a source: {error}") from None
    if isinstance(message, Ask):
        check_groups(message.groups, key_size)
    elif isinstance(message, Hello):
        _check_texts(message.compatibility)
    return message


def decode_to_destination(body: bytes) -> ToDestination:
    """Raises WireRefused for anything that a well-behaved source would not send."""
    try:
        return _to_destination.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireRefused(f"not a message for a destination: {error}") from None


def check_groups(groups: tuple[KeyGroup, ...], key_size: int) -> int:
    """Return how many keys there are; raises WireRefused if they cannot be looked up."""
    total = 0
    for group in groups:
        keys, rest = divmod(len(group.keys), key_size)
        if rest:
            raise WireRefused(f"{len(group.keys)} bytes of keys are no multiple of {key_size}")
        if not 0 < group.tokens_per_key <= 1 << 20 or not 0 <= group.window <= MAX_KEYS:
            raise WireRefused(
                f"a group of {group.tokens_per_key} tokens per key and window {group.window}"
            )
        total += keys
    if total > MAX_KEYS or len(groups) > MAX_GROUPS:
        raise WireRefused(
            f"{total} keys in {len(groups)} groups, expected at most {MAX_KEYS} in {MAX_GROUPS}"
        )
    return total


def printable(text: str) -> str:
    """What a peer wrote, fit for one line of a log."""
    return "".join(c if c.isprintable() else "?" for c in text)


def show_content(content: bytes) -> str:
    """For logs: enough of it to tell two apart."""
    return content[:6].hex() or "not known yet"


def _check_texts(compatibility: Compatibility) -> None:
    for field in compatibility.__struct_fields__:
        value = getattr(compatibility, field)
        if isinstance(value, str | tuple) and len(value) > MAX_DETAIL:
            raise WireRefused(f"{field} is {len(value)} long, expected at most {MAX_DETAIL}")


# --- packed lists ----------------------------------------------------------------------

# Slicing this is how packed ascending indexes are made: one copy, no loop.
_ASCENDING = array.array("I", range(MAX_KEYS)).tobytes()


def pack_runs(runs: list[tuple[int, int]]) -> bytes:
    """Pack (first index, count) pairs for `Grant.runs`."""
    return array.array("I", itertools.chain.from_iterable(runs)).tobytes()


def unpack_grant(grant: Grant, keys: int, limit: int) -> bytes:
    """Return the granted indexes, packed.

    Raises WireRefused unless they are ascending, below `keys`, at most `limit`, and
    each has a block id. Whether the ids are inside the peer's tier, the initiator checks.
    """
    if len(grant.runs) % 8 or len(grant.blocks) % 4:
        raise WireRefused("a grant with half an entry")
    granted = len(grant.blocks) // 4
    runs = array.array("I", grant.runs)
    pieces = []
    end = total = 0
    for first, count in zip(runs[::2], runs[1::2], strict=True):
        if first < end or not count or first + count > keys:
            raise WireRefused("a grant of keys that were not asked for")
        end = first + count
        total += count
        pieces.append(_ASCENDING[4 * first : 4 * end])
    if total != granted or granted > limit:
        raise WireRefused(f"a grant of {granted} blocks for {total} keys, asked for {limit}")
    return b"".join(pieces)
