"""Sizes of memory, such as "64GiB"."""

import re

from mpkv.cluster.words import shown
from mpkv.errors import ConfigRefused

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
# More than any machine can address.
_BEYOND = 1 << 57


def parse_size(text: str) -> int:
    """Bytes of a size such as "64GiB" or "512 MiB". Raises ConfigRefused."""
    match = re.fullmatch(r"\s*([0-9]{1,12})\s*([A-Za-z]*)\s*", text)
    if match is None:
        raise ConfigRefused(
            f'expected a whole number and a unit, such as "64GiB", found "{shown(text)}"; '
            f"write one of the units {', '.join(UNITS)}"
        )
    number, unit = match.groups()
    if unit in UNITS:
        size = int(number) * UNITS[unit]
        if size == 0:
            raise ConfigRefused(
                f'expected a size above zero, found "{shown(text)}"; write for example "64GiB"'
            )
        if size >= _BEYOND:
            raise ConfigRefused(
                f"expected a size below {_BEYOND // UNITS['TiB']}TiB, which no machine has, "
                f'found "{shown(text)}"; write for example "64GiB"'
            )
        return size
    nearest = f"{unit[:1].upper() or 'G'}iB"
    remedy = f'"{number}{nearest if nearest in UNITS else "GiB"}"'
    if not unit:
        raise ConfigRefused(
            f'expected a size with a unit, found "{shown(text)}"; write {remedy} if that is meant'
        )
    raise ConfigRefused(
        f'expected one of the units {", ".join(UNITS)}, found "{shown(unit)}" in '
        f'"{shown(text)}"; sizes are powers of two here: write {remedy}'
    )
