"""How what a file or a user wrote is shown in a message: one line, printable and short."""

from collections.abc import Sequence
from typing import NoReturn

from mpkv.errors import ConfigRefused

LONGEST_SHOWN = 80
LONGEST_LIST = 20
# Beyond these a number says no more than that it is far too large.
_LARGEST_SHOWN = 10**18


def refuse(path: str, key: str, complaint: str) -> NoReturn:
    raise ConfigRefused(f"{path}: {key}: {complaint}.") from None


def shown(text: str) -> str:
    """`text` without what would break a line or a terminal, and cut where it is long."""
    plain = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:LONGEST_SHOWN])
    if len(text) <= LONGEST_SHOWN:
        return plain
    return f"{plain}... ({len(text):,} characters)"


def shown_number(number: int | float) -> str:
    """Python writes no integer of thousands of digits."""
    if isinstance(number, int) and abs(number) > _LARGEST_SHOWN:
        return "a number beyond 10^18" if number > 0 else "a number below -10^18"
    return str(number)


def listed(names: Sequence[str]) -> str:
    first = ", ".join(shown(name) for name in names[:LONGEST_LIST])
    more = len(names) - LONGEST_LIST
    return f"{first} and {more:,} more" if more > 0 else first
