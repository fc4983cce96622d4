"""Which folder may import which: what the folders' own pages promise."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mpkv

PACKAGE = Path(mpkv.__file__).parent

# Folder: what it must not import.
FORBIDDEN = {
    "memory": ("cluster", "control", "engine", "messages", "processes", "registration"),
    "cluster": ("control", "engine", "memory", "messages", "processes", "registration"),
    "processes": ("control", "engine", "memory", "registration"),
    "control": ("engine", "registration"),
    "control/network": ("control.source", "control.destination"),
    "control/source": ("control.destination",),
    "control/destination": ("control.source",),
    "engine": ("control", "registration"),
    "registration": ("control", "engine"),
}


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_a_folder_keeps_to_what_it_may_import(folder: str) -> None:
    files = sorted((PACKAGE / folder).rglob("*.py"))
    assert files
    wrong = [
        f"{file.relative_to(PACKAGE)} imports {name}"
        for file in files
        for name in _imports(file)
        for forbidden in FORBIDDEN[folder]
        if f"{name}.".startswith(f"mpkv.{forbidden}.")
    ]
    assert wrong == []


@pytest.mark.parametrize("folder", ["control", "processes", "cluster"])
def test_helpers_import_neither_vllm_nor_torch(folder: str) -> None:
    heavy = {"vllm", "torch", "numpy"}
    for file in (PACKAGE / folder).rglob("*.py"):
        assert heavy.isdisjoint(name.partition(".")[0] for name in _imports(file)), file


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
