"""What single values may be, wherever they come from: a cluster file, or the settings that
reach an engine. Each rule returns what is wrong, as "expected ..., found ...; do ...", or
None."""

import re
from collections.abc import Mapping, Sequence

from mpkv.cluster.words import shown, shown_number

# It comes on top of what other pulls may claim, a quarter.
LARGEST_HEAD_START = 0.125
# A source keeps a lease for a minute at most, and it must outlive the pull.
LONGEST_DEADLINE_S = 59
MOST_LANES = 16
MOST_RANKS = 1024
_LAST_PORT = 65535
_LONGEST_MODEL = 4095
_LONGEST_REVISION = 255
_LONGEST_CONTENT = 64


def wrong_name(name: str) -> str | None:
    """A node's name becomes part of file names."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name):
        return None
    return f'expected 1-63 letters, digits, ".", "_" or "-", found "{shown(name)}"; rename it'


def wrong_ranks(ranks: int) -> str | None:
    if 1 <= ranks <= MOST_RANKS:
        return None
    least = "1 or more" if ranks < 1 else f"1 to {MOST_RANKS}"
    return f"expected {least}, found {shown_number(ranks)}; write the number of ranks"


def wrong_port(port: int, ranks: int) -> str | None:
    """`ranks` has passed its own rule."""
    last = _LAST_PORT + 1 - ranks
    if 1 <= port <= last:
        return None
    return (
        f"expected a port from 1 to {last} (rank r uses port + r), "
        f"found {shown_number(port)}; choose another"
    )


def wrong_http_port(port: int) -> str | None:
    if 0 <= port <= _LAST_PORT:
        return None
    return f"expected a port from 1 to {_LAST_PORT}, found {shown_number(port)}; choose another"


def wrong_deadline(deadline_s: float) -> str | None:
    if 0 < deadline_s <= LONGEST_DEADLINE_S:
        return None
    return (
        f"expected seconds above 0 and up to {LONGEST_DEADLINE_S}, "
        f"found {shown_number(deadline_s)}; write for example 10.0"
    )


def wrong_head_start(share: float) -> str | None:
    if 0 <= share <= LARGEST_HEAD_START:
        return None
    return (
        f"expected a share of the tier from 0 to {LARGEST_HEAD_START}, found "
        f"{shown_number(share)}; write for example 0.05"
    )


def wrong_lanes(lanes: int) -> str | None:
    if 1 <= lanes <= MOST_LANES:
        return None
    return f"expected 1 to {MOST_LANES}, found {shown_number(lanes)}; write 2"


def wrong_model(model: str) -> str | None:
    if not model:
        return "expected a model, found an empty string; name or path it"
    if not model.isprintable() or len(model.encode()) > _LONGEST_MODEL or model.startswith("-"):
        return (
            f'expected a hub name or a path, found "{shown(model)}"; '
            "correct it, and begin a path with / or ./"
        )
    return None


def wrong_revision(revision: str) -> str | None:
    plain = revision.isprintable() and not revision.startswith("-")
    if plain and len(revision) <= _LONGEST_REVISION:
        return None
    return (
        f'expected a branch, a tag or a commit, found "{shown(revision)}"; '
        f"write one of up to {_LONGEST_REVISION} characters"
    )


def wrong_content(content: str) -> str | None:
    if re.fullmatch(rf"[ -~]{{0,{_LONGEST_CONTENT}}}", content):
        return None
    return (
        f'expected up to {_LONGEST_CONTENT} printable ASCII characters, found "{shown(content)}"; '
        'write for example "run-17"'
    )


def wrong_arguments(arguments: Sequence[str]) -> str | None:
    for argument in arguments:
        if "\0" in argument:
            return (
                f'expected arguments for a command, found "{shown(argument)}"; '
                "take the NUL character out"
            )
    return None


def wrong_environment(env: Mapping[str, str]) -> str | None:
    for name, value in env.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            return (
                'expected names of letters, digits and "_" that begin with no digit, '
                f'found "{shown(name)}"; rename it'
            )
        if "\0" in value:
            return (
                f'expected text for {shown(name)}, found "{shown(value)}"; '
                "take the NUL character out"
            )
    if "PYTHONHASHSEED" in env:
        return "PYTHONHASHSEED must be equal on all nodes; set hash_seed in [cluster] instead"
    return None
