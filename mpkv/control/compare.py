"""Which fields keep two engines from sharing blocks."""

import functools

from mpkv.control.network.wire import MAX_TEXT, Difference
from mpkv.messages import Compatibility

# Other algorithms hash Python's pickles, which differ between processes and versions.
STABLE_HASH = "_cbor"


def differences(source: Compatibility, destination: Compatibility) -> tuple[Difference, ...]:
    """Every field that differs, with both values; empty if the two may share.

    A hash algorithm whose keys mean nothing to another process is named even when both
    have it.
    """
    unstable = not (
        source.hash_algorithm.endswith(STABLE_HASH)
        and destination.hash_algorithm.endswith(STABLE_HASH)
    )
    found = []
    for field in source.__struct_fields__:
        ours, theirs = getattr(source, field), getattr(destination, field)
        if ours != theirs or (field == "hash_algorithm" and unstable):
            found.append(Difference(field, _text(ours), _text(theirs)))
    return tuple(found)


@functools.cache
def nixl_version() -> str:
    """Of the NIXL installed here, without importing it; "" if that cannot be said."""
    import importlib.metadata

    try:
        return importlib.metadata.version("nixl")
    except importlib.metadata.PackageNotFoundError:
        return ""


def nixl_differences(source: str, destination: str) -> tuple[Difference, ...]:
    """Named if the two NIXLs are of different minor versions: their metadata differ, and
    NIXL aborts the process that loads what it does not understand."""
    if "" in (source, destination) or source.split(".")[:2] == destination.split(".")[:2]:
        return ()
    return (Difference("nixl", source, destination),)


def describe(differing: tuple[Difference, ...], we_are: str) -> str:
    """One sentence with the names and both values; `we_are` "source" or "destination"."""
    they_are = "destination" if we_are == "source" else "source"
    parts = [
        f"{item.field} is {getattr(item, we_are)!r} here and {getattr(item, they_are)!r} there"
        for item in differing
    ]
    hashes = [item for item in differing if item.field == "hash_algorithm"]
    if any(not value.endswith(STABLE_HASH) for h in hashes for value in (h.source, h.destination)):
        parts.append(
            "such hashes are not stable across processes: start every vLLM with "
            "--prefix-caching-hash-algo sha256_cbor and the same PYTHONHASHSEED"
        )
    if any(item.field == "nixl" for item in differing):
        parts.append("install the same version of NIXL on both")
    return "; ".join(parts)


def _text(value: object) -> str:
    return str(value)[:MAX_TEXT]
