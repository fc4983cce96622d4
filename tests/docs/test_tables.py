"""Tables of the documents say what the code says."""

import importlib
import tomllib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from mpkv.cluster.sections import ClusterFile, Node
from mpkv.engine import metrics
from mpkv.memory import Ledger
from mpkv.memory.counters import NAMES
from mpkv.messages import MissReason
from tests.docs.pages import all_pages, bare, names_in, page

WIRE = "mpkv/control/network/wire.py"
CONSTANTS = [
    (each.name, bare(row[0]), row[1], bare(row[2]) if table.header[2] == "file" else WIRE)
    for each in all_pages()
    for table in each.tables()
    if table.header[0] == "constant"
    for row in table.rows
]


@pytest.mark.parametrize(("where", "name", "value", "file"), CONSTANTS)
def test_constants(where: str, name: str, value: str, file: str) -> None:
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    assert float(value.replace(",", "")) == getattr(module, name)


def test_there_are_constants() -> None:
    assert {where for where, *_ in CONSTANTS} == {"docs/protocol.md", "docs/operations.md"}


def test_every_key_of_a_cluster_file_with_its_default() -> None:
    told = {
        (bare(section), bare(key)): bare(default)
        for section, key, default, _ in page("docs/configuration.md").table("section", "key").rows
    }
    found = {(section, field.name): field for section, field in _keys()}
    assert told.keys() == found.keys()
    for key, field in found.items():
        required = field.required
        assert bool(told[key]) != required, key
        if not required:
            assert tomllib.loads(f"key = {told[key]}")["key"] == _default(field), key


def _keys() -> Iterator[tuple[str, msgspec.structs.FieldInfo]]:
    for section in msgspec.structs.fields(ClusterFile):
        if section.name == "node":
            yield from (("[[node]]", field) for field in msgspec.structs.fields(Node))
        else:
            yield from ((f"[{section.name}]", f) for f in msgspec.structs.fields(section.type))


def _default(field: msgspec.structs.FieldInfo) -> Any:
    made = field.default_factory is not msgspec.NODEFAULT
    default = field.default_factory() if made else field.default
    return list(default) if isinstance(default, tuple) else default


def test_every_metric_with_its_labels() -> None:
    told = {
        bare(name): tuple(names_in(labels))
        for name, labels, _ in page("docs/operations.md").table("name", "labels").rows
    }
    found = {}
    for name, metric in metrics.definitions().items():
        total = "_total" if "Counter" in type(metric).__name__ else ""
        found[name + total] = tuple(getattr(metric, "labelnames", ()))
    assert told == found


def test_the_states_of_blocks() -> None:
    text = page("docs/operations.md").prose
    (told,) = [part for part in text.split("\n\n") if part.startswith("States of ")]
    ledger = Ledger.create(1, 36)
    states = {*ledger.counts(), "stock"}
    ledger.close()
    assert set(names_in(told)) == {"mpkv:tier_blocks", *states}


def test_the_reasons_of_misses() -> None:
    told = [bare(row[0]) for row in page("docs/operations.md").table("reason", "cause").rows]
    assert sorted(told) == sorted(MissReason)


def test_what_is_worth_an_alert_is_counted() -> None:
    text = page("docs/operations.md").prose
    (told,) = [part for part in text.split("\n\n") if part.startswith("Worth an alert")]
    names = [name for name in names_in(told) if not name.startswith("mpkv:")]
    events = {event for role in NAMES.values() for event in role}
    assert [name for name in names if name not in {*events, *MissReason}] == []
    found = {name for name in names_in(told) if name.startswith("mpkv:")}
    metric_names = {bare(row[0]) for row in page("docs/operations.md").table("name", "labels").rows}
    assert found <= metric_names


def test_every_metric_that_is_named_anywhere_is_there() -> None:
    known = {bare(row[0]) for row in page("docs/operations.md").table("name", "labels").rows}
    named = {code for each in all_pages() for _, code in each.code() if code.startswith("mpkv:")}
    assert named <= known


def test_the_main_figures_are_those_of_the_report() -> None:
    (main,) = [table for table in page("README.md").tables() if "mpkv" in table.header]
    report = page("docs/performance.md").tables()
    assert [row for row in main.rows if not any(row in table.rows for table in report)] == []
