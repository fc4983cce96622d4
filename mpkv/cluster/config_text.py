"""Reading a cluster file: TOML, key names, types and sizes, each refused in one line."""

import difflib
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

import msgspec

from mpkv.errors import ConfigRefused

Shape = TypeVar("Shape", bound=msgspec.Struct)
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def refuse(path: str, key: str, complaint: str) -> NoReturn:
    raise ConfigRefused(f"{path}: {key}: {complaint}.") from None


def parse_size(text: str) -> int:
    """Bytes of a size such as "64GiB" or "512 MiB". Raises ConfigRefused."""
    match = re.fullmatch(r"\s*([0-9]{1,12})\s*([A-Za-z]*)\s*", text)
    if match is None:
        raise ConfigRefused(
            f'expected a whole number and a unit, such as "64GiB", found "{text}"; '
            f"write one of the units {', '.join(UNITS)}"
        )
    number, unit = match.groups()
    if unit in UNITS:
        size = int(number) * UNITS[unit]
        if size == 0:
            raise ConfigRefused(
                f'expected a size above zero, found "{text}"; write for example "64GiB"'
            )
        return size
    nearest = f"{unit[:1].upper() or 'G'}iB"
    remedy = f'"{number}{nearest if nearest in UNITS else "GiB"}"'
    if not unit:
        raise ConfigRefused(
            f'expected a size with a unit, found "{text}"; write {remedy} if that is meant'
        )
    raise ConfigRefused(
        f'expected one of the units {", ".join(UNITS)}, found "{unit}" in "{text}"; '
        f"sizes are powers of two here: write {remedy}"
    )


def read_toml(path: str) -> dict[str, Any]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigRefused(
            f"{path}: no such file; name an existing cluster file, such as configs/local.toml."
        ) from None
    except IsADirectoryError:
        raise ConfigRefused(f"{path}: is a directory; name the cluster file in it.") from None
    except OSError as error:
        raise ConfigRefused(
            f"{path}: cannot be read ({error.strerror}); make it readable for this user."
        ) from None
    except UnicodeDecodeError:
        raise ConfigRefused(f"{path}: is not UTF-8 text; save it as UTF-8.") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"^(?P<what>.*) \(at (?P<where>[^)]*)\)$", str(error))
        what, line = (where["what"], where["where"]) if where else (str(error), "TOML")
        raise ConfigRefused(f"{path}: {line}: {what}; correct the TOML there.") from None


def decode(path: str, raw: dict[str, Any], shape: type[Shape]) -> Shape:
    """Turn the tables of a file into `shape`, whose fields are sections of the file:
    a struct for `[section]`, a tuple of structs for `[[section]]`."""
    sections = {field.name: _section(field.type) for field in msgspec.structs.fields(shape)}
    _refuse_unknown(path, "", raw, sections)
    for section, struct in sections.items():
        value = raw.get(section)
        for index, table in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(table, dict):
                where = f" in {_label(raw, section, index)}"
                _refuse_unknown(path, where, table, struct.__struct_fields__)
    try:
        return msgspec.convert(raw, shape, strict=True)
    except msgspec.ValidationError as error:
        lists = {field.name for field in msgspec.structs.fields(shape) if get_args(field.type)}
        _refuse_shape(path, raw, lists, str(error))


def _section(field_type: Any) -> type[msgspec.Struct]:
    struct: type[msgspec.Struct] = get_args(field_type)[0] if get_args(field_type) else field_type
    return struct


def _refuse_unknown(path: str, where: str, table: dict[str, Any], known: Iterable[str]) -> None:
    for key in table:
        if key in known:
            continue
        near = difflib.get_close_matches(key, list(known), n=1)
        remedy = f'did you mean "{near[0]}"?' if near else f"known keys are {', '.join(known)}."
        raise ConfigRefused(f'{path}: unknown key "{key}"{where}; {remedy}')


def _label(raw: dict[str, Any], section: str, index: int) -> str:
    value = raw.get(section)
    if not isinstance(value, list):
        return f"[{section}]"
    name = value[index].get("name") if isinstance(value[index], dict) else None
    return f'[[{section}]] "{name}"' if isinstance(name, str) else f"[[{section}]] #{index + 1}"


_TYPE_NAMES = {
    "str": "a string in quotes",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "a table",
}


def _refuse_shape(path: str, raw: dict[str, Any], lists: set[str], error: str) -> NoReturn:
    """Say a msgspec error, such as "Expected `int`, got `str` - at `$.node[1].port`",
    in the words of the file."""
    what, _, where = error.partition(" - at ")
    steps = re.match(r"`?\$\.?(?P<section>\w*)(\[(?P<index>[0-9]+)\])?\.?(?P<key>[^`]*)", where)
    section, index, key = steps.group("section", "index", "key") if steps else ("", None, "")
    label = _label(raw, section, int(index or 0)) if section else ""
    place = f"{label} {key}".strip()
    missing = re.match(r"Object missing required field `(\w+)`", what)
    if missing and not section:
        header = f"[[{missing[1]}]]" if missing[1] in lists else f"[{missing[1]}]"
        refuse(path, header, "expected this section, found none; add it to the file")
    if section in lists and not isinstance(raw[section], list):
        refuse(
            path, f"[{section}]", f"expected [[{section}]], found [{section}]; double the brackets"
        )
    if missing:
        name = missing[1]
        refuse(path, place, f'expected the key "{name}", found none; add it')
    types = re.match(r"Expected `(\w+)`, got `(\w+)`", what)
    if types is None:
        refuse(path, place, what)
    expected, found = (_TYPE_NAMES.get(name, name) for name in types.groups())
    refuse(path, place, f"expected {expected}, found {found}; write {expected}")
