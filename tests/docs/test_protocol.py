"""docs/protocol.md names every message, field, reason and bound of the wire."""

import enum
import typing

import msgspec
import pytest

from mpkv.control.network import wire
from mpkv.messages import Compatibility, KeyGroup
from tests.docs.pages import bare, names_in, page

PAGE = page("docs/protocol.md")
TO_SOURCE = typing.get_args(wire.ToSource)
TO_DESTINATION = typing.get_args(wire.ToDestination)
INSIDE = (KeyGroup, wire.Difference, Compatibility)


def test_the_version() -> None:
    version = wire.PROTOCOL.decode()
    assert f"This page describes `{version}`." in PAGE.text
    newest, *_ = PAGE.table("version").rows
    assert bare(newest[0]) == version


def test_every_message_and_field() -> None:
    told = {
        bare(tag): tuple(names_in(fields))
        for table in PAGE.tables()
        if table.header[:2] in (["tag", "fields"], ["struct", "fields"])
        for tag, fields, *_ in table.rows
    }
    found = {
        struct.__struct_config__.tag: struct.__struct_fields__
        for struct in (*TO_SOURCE, *TO_DESTINATION)
    }
    found |= {struct.__name__: struct.__struct_fields__ for struct in INSIDE}
    assert told == found


def test_messages_stand_under_their_receiver() -> None:
    to_source, to_destination = [
        [bare(row[0]) for row in table.rows]
        for table in PAGE.tables()
        if table.header[:2] == ["tag", "fields"]
    ]
    assert to_source == [struct.__struct_config__.tag for struct in TO_SOURCE]
    assert to_destination == [struct.__struct_config__.tag for struct in TO_DESTINATION]


def test_no_struct_is_left_out() -> None:
    inside = {
        name
        for name, value in vars(wire).items()
        if isinstance(value, type) and issubclass(value, msgspec.Struct)
    }
    assert inside == {struct.__name__ for struct in (*TO_SOURCE, *TO_DESTINATION, *INSIDE)}


@pytest.mark.parametrize(("number", "reasons"), [(0, wire.Denial), (1, wire.Loss)])
def test_reasons(number: int, reasons: type[enum.StrEnum]) -> None:
    table = [table for table in PAGE.tables() if table.header[0] == "reason"][number]
    assert [bare(row[0]) for row in table.rows] == list(reasons)


def test_every_bound() -> None:
    told = {bare(row[0]) for row in PAGE.table("constant", "value", "what it bounds").rows}
    assert told == {name for name in vars(wire) if name.startswith("MAX_")}
