"""What a block must hold: bytes that name its key and the weights, all through."""

from tests.support.standin import make_keys

WEIGHTS_BYTES = 8


def content(key: bytes, weights: int, size: int) -> bytes:
    unit = key + weights.to_bytes(WEIGHTS_BYTES, "little")
    return (unit * (size // len(unit) + 1))[:size]


def difference(found: bytes, key: bytes, weights: int) -> str:
    """Say where `found` differs from the content of `key`, and what stands there."""
    expected = content(key, weights, len(found))
    at = next(i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
    unit = len(key) + WEIGHTS_BYTES
    start = at - at % unit
    theirs = found[start : start + unit]
    name = theirs[: len(key)].rstrip(b"\0.").decode(errors="replace")
    number = int.from_bytes(theirs[len(key) :], "little")
    return f"from byte {at} of {len(found)} it is {name!r} of weights {number}"


def prompt(owner: str, number: int) -> list[bytes]:
    """The keys of one of an engine's own prompts; they differ in length."""
    return make_keys(f"{owner}/{number}", 4 + number * 37 % 41)
