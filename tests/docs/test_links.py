"""What the documents point to is there."""

import ast
import re
from pathlib import Path

import pytest

from mpkv.control.network.wire import PROTOCOL
from tests.docs.pages import REPOSITORY, Page, all_pages, page

LANGUAGES = {"sh", "text", "python"}
SCREENS = 120

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PATH = re.compile(r"(?<![\w./~-])(?:mpkv|tests|cli|configs|docs)/[\w./:-]*\w?/?")
_VERSION = re.compile(r"mpkv/(\d+)")

each_page = pytest.mark.parametrize("page", all_pages(), ids=lambda page: page.name)


@each_page
def test_links(page: Page) -> None:
    assert [link for link in _LINK.findall(page.prose) if not _leads(page, link)] == []


def _leads(source: Page, link: str) -> bool:
    if link.startswith("https://"):
        return True
    name, _, anchor = link.partition("#")
    path = (source.folder / name).resolve() if name else REPOSITORY / source.name
    if not path.is_relative_to(REPOSITORY) or not path.exists():
        return False
    return not anchor or anchor in page(str(path.relative_to(REPOSITORY))).anchors()


@each_page
def test_names_of_files_and_tests(page: Page) -> None:
    assert [named for named in _PATH.findall(page.text) if not _is_there(named.rstrip(".:"))] == []


def _is_there(named: str) -> bool:
    if version := _VERSION.fullmatch(named):
        return int(version[1]) <= int(PROTOCOL.decode().partition("/")[2])
    name, _, test = named.partition("::")
    path = REPOSITORY / name
    if not test:
        return path.exists()
    return path.exists() and test in _functions(path)


def _functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@each_page
def test_blocks_say_what_they_are(page: Page) -> None:
    """So that no command hides in one."""
    assert {block.language for block in page.blocks} <= LANGUAGES
    lines = page.prose.splitlines()
    indented = [n for n, line in enumerate(lines, 1) if line.startswith("    ") and line.strip()]
    assert [n for n in indented if not lines[n - 2].strip()] == []
    assert "\t" not in page.text


def test_the_readme_has_two_screens_and_links_every_page() -> None:
    readme = page("README.md")
    assert readme.text.count("\n") <= SCREENS
    linked = {link.partition("#")[0] for link in _LINK.findall(readme.prose)}
    assert {p.name for p in all_pages()} - linked == {"README.md", "mpkv/memory/README.md"}


def test_the_first_screen_of_the_readme() -> None:
    """What it is, how to run and test it, what comes of it."""
    first = "\n".join(page("README.md").text.splitlines()[:40])
    for wanted in (
        "Any vLLM replica reuses",
        "make demo ",
        "make test ",
        "outputs identical",
        "![",
    ):
        assert wanted in first
