"""Turning the tables of a cluster file into structs: unknown keys and wrong types are
refused in the words of the file."""

import difflib
import re
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar, get_args

import msgspec

from mpkv.cluster.words import LONGEST_SHOWN, listed, refuse, shown
from mpkv.errors import ConfigRefused

Shape = TypeVar("Shape", bound=msgspec.Struct)


def decode(path: str, raw: dict[str, Any], shape: type[Shape]) -> Shape:
    """Turn the tables of a file into `shape`, whose fields are sections of the file:
    a struct for `[section]`, a tuple of structs for `[[section]]`. Raises ConfigRefused."""
    fields = msgspec.structs.fields(shape)
    sections = {field.name: _section(field.type) for field in fields}
    _refuse_unknown(path, "", raw, tuple(sections))
    for field in fields:
        if field.name in raw:
            _check_brackets(path, field.name, raw[field.name], bool(get_args(field.type)))
    for section, struct in sections.items():
        value = raw.get(section)
        for index, table in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(table, dict):
                where = f" in {_label(raw, section, index)}"
                _refuse_unknown(path, where, table, struct.__struct_fields__)
    try:
        return msgspec.convert(raw, shape, strict=True)
    except msgspec.ValidationError as error:
        lists = {field.name for field in fields if get_args(field.type)}
        _refuse_shape(path, raw, lists, str(error))


def _section(field_type: Any) -> type[msgspec.Struct]:
    struct: type[msgspec.Struct] = get_args(field_type)[0] if get_args(field_type) else field_type
    return struct


def _check_brackets(path: str, section: str, value: Any, many: bool) -> None:
    """`[section]` is a table, `[[section]]` an array of tables."""
    tables = isinstance(value, list) and all(isinstance(table, dict) for table in value)
    if many and isinstance(value, dict):
        refuse(
            path, f"[{section}]", f"expected [[{section}]], found [{section}]; double the brackets"
        )
    if many and not tables:
        refuse(path, section, f"expected [[{section}]], found {_kind(value)}; write [[{section}]]")
    if not many and tables and value:
        refuse(
            path,
            f"[[{section}]]",
            f"expected one [{section}], found [[{section}]]; use single brackets, once",
        )
    if not many and not isinstance(value, dict):
        refuse(path, section, f"expected [{section}], found {_kind(value)}; write [{section}]")


def _refuse_unknown(path: str, where: str, table: dict[str, Any], known: Sequence[str]) -> None:
    for key in table:
        if key in known:
            continue
        near = difflib.get_close_matches(key[:LONGEST_SHOWN], known, n=1)
        remedy = f'did you mean "{near[0]}"?' if near else f"known keys are {listed(known)}."
        raise ConfigRefused(f'{path}: unknown key "{shown(key)}"{where}; {remedy}')


def _label(raw: dict[str, Any], section: str, index: int) -> str:
    value = raw[section]
    if not isinstance(value, list):
        return f"[{section}]"
    return section_label(section, value[index].get("name"), index)


def section_label(section: str, name: object, index: int) -> str:
    if isinstance(name, str):
        return f'[[{section}]] "{shown(name)}"'
    return f"[[{section}]] #{index + 1}"


_TYPE_NAMES = {
    "str": "a string in quotes",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "a table",
    "date": "a date",
    "datetime": "a date and time",
    "time": "a time",
}


def _kind(value: Any) -> str:
    name = {"list": "array", "dict": "object"}.get(type(value).__name__, type(value).__name__)
    return _TYPE_NAMES.get(name, name)


def _refuse_shape(path: str, raw: dict[str, Any], lists: set[str], error: str) -> NoReturn:
    """Say a msgspec error, such as "Expected `int`, got `str` - at `$.node[1].port`",
    in the words of the file."""
    what, _, where = error.partition(" - at ")
    steps = re.match(r"`?\$\.?(?P<section>\w*)(\[(?P<index>[0-9]+)\])?\.?(?P<key>[^`]*)", where)
    section, index, key = steps.group("section", "index", "key") if steps else ("", None, "")
    label = _label(raw, section, int(index or 0)) if section else ""
    # "[...]" stands for any key of a table.
    place = f"{label} {key.removesuffix('[...]')}".strip()
    missing = re.match(r"Object missing required field `(\w+)`", what)
    if missing and not section:
        header = f"[[{missing[1]}]]" if missing[1] in lists else f"[{missing[1]}]"
        refuse(path, header, "expected this section, found none; add it to the file")
    if missing:
        refuse(path, place, f'expected the key "{missing[1]}", found none; add it')
    types = re.match(r"Expected `(\w+)`, got `(\w+)`", what)
    if types is None:
        refuse(path, place, f"expected another value, found that: {shown(what)}; correct it")
    expected, found = (_TYPE_NAMES.get(name, name) for name in types.groups())
    refuse(path, place, f"expected {expected}, found {found}; write {expected}")
