"""Strategies for what all messages and records are made of, ordinary and extreme."""

import msgspec
from hypothesis import strategies as st

from mpkv.messages import KeyGroup

# Few, so that messages meet each other's; and the edges of what the types allow.
numbers = st.integers(0, 6) | st.sampled_from([1 << 31, (1 << 32) - 1, (1 << 63) - 1])
texts = st.text(max_size=12) | st.sampled_from(
    ["", "\0", "\x1b[2J", "x" * 256, "x" * 2000, "é" * 90]
)


def packed(item: int, most: int) -> st.SearchStrategy[bytes]:
    """Native integers of `item` bytes each, mostly small; now and then half of one more."""
    values = st.integers(0, most) | st.integers(0, (1 << 8 * item) - 1)
    whole = st.lists(values, max_size=8).map(
        lambda found: b"".join(value.to_bytes(item, "little") for value in found)
    )
    return st.one_of(whole, whole, whole, whole.map(lambda found: found + b"\1"))


def groups(known: list[bytes]) -> st.SearchStrategy[tuple[KeyGroup, ...]]:
    """Groups of keys, most of them `known`; some of them no whole number of keys."""
    key = st.sampled_from(known) | st.binary(min_size=len(known[0]), max_size=len(known[0]))
    keys = st.lists(key, max_size=6).map(b"".join) | st.sampled_from([known[0] * 300, b"short"])
    tokens = st.sampled_from([16, 16, 16, 1, 32, 0, 1 << 20, (1 << 20) + 1])
    window = st.sampled_from([0, 0, 0, 1, 3, 1 << 17, 1 << 40, -1])
    group = st.builds(KeyGroup, keys, tokens, window)
    return st.lists(group, min_size=1, max_size=4).map(tuple)


def bytes_of(message: st.SearchStrategy[msgspec.Struct]) -> st.SearchStrategy[bytes]:
    """Encoded messages: whole ones, damaged ones, and ones with any values in their fields, or
    with a field that nests deeper than a decoder follows."""
    whole = message.map(msgspec.msgpack.encode)
    return st.one_of(whole, whole, whole, _damaged(whole), _refilled(message), _deep(message))


def _damaged(whole: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    @st.composite
    def damage(draw: st.DrawFn) -> bytes:
        body = draw(whole)
        at = draw(st.integers(0, len(body)))
        until = draw(st.integers(at, min(at + 4, len(body))))
        return body[:at] + draw(st.binary(max_size=4)) + body[until:]

    return damage()


def _deep(message: st.SearchStrategy[msgspec.Struct]) -> st.SearchStrategy[bytes]:
    """One more field, somewhere among the others."""
    field = msgspec.Raw(b"\x91" * 3000 + b"\xc0")

    @st.composite
    def deepen(draw: st.DrawFn) -> bytes:
        fields = list(msgspec.msgpack.decode(msgspec.msgpack.encode(draw(message))))
        fields.insert(draw(st.integers(0, len(fields))), field)
        return msgspec.msgpack.encode(fields)

    return deepen()


def _refilled(message: st.SearchStrategy[msgspec.Struct]) -> st.SearchStrategy[bytes]:
    """The tag of a message, and as many or some more fields of any type."""
    scalar = st.none() | st.booleans() | numbers | st.floats() | texts | st.binary(max_size=40)
    value = st.recursive(scalar, lambda some: st.lists(some, max_size=4), max_leaves=6)

    @st.composite
    def refill(draw: st.DrawFn) -> bytes:
        fields = list(msgspec.msgpack.decode(msgspec.msgpack.encode(draw(message))))
        for at in draw(st.lists(st.integers(1, len(fields)), max_size=3)):
            fields[at : at + 1] = [draw(value)]
        return msgspec.msgpack.encode(fields)

    return refill()
