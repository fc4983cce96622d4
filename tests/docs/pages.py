"""README.md, docs/ and mpkv/memory/README.md as the tests read them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

_FENCE = re.compile(r"```(\w*)$")
_HEADING = re.compile(r"#+ (.+)$")
_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block; `line` is that of its first line of text."""

    page: str
    line: int
    language: str
    text: str


@dataclass(frozen=True)
class Table:
    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Page:
    """`name` is its path in the repository. In `prose` fenced blocks are empty lines."""

    name: str
    text: str
    prose: str
    blocks: tuple[Block, ...]

    @property
    def folder(self) -> Path:
        return (REPOSITORY / self.name).parent

    def code(self) -> Iterator[tuple[int, str]]:
        """What stands `like this` in a line or over two, with its line."""
        for paragraph in re.finditer(r"(?:.+\n?)+", self.prose):
            for found in _CODE.finditer(paragraph[0]):
                before = self.prose[: paragraph.start() + found.start()]
                yield before.count("\n") + 1, " ".join(found[1].split())

    def anchors(self) -> set[str]:
        """What GitHub makes of headings."""
        headings = (match[1] for line in self.prose.splitlines() if (match := _HEADING.match(line)))
        return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}

    def tables(self) -> list[Table]:
        lines = [line if line.startswith("|") else "" for line in self.prose.splitlines()]
        found = []
        for run in re.findall(r"(?:\|.*\n)+", "\n".join([*lines, ""])):
            header, _, *rows = [_cells(line) for line in run.splitlines()]
            found.append(Table(header, rows))
        return found

    def table(self, *header: str) -> Table:
        """The one whose header begins so."""
        (found,) = [t for t in self.tables() if tuple(t.header[: len(header)]) == header]
        return found


def page(name: str) -> Page:
    text = (REPOSITORY / name).read_text()
    prose, blocks = [], []
    language, first = "", 0
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line)
        if first and line == "```":
            blocks.append(Block(name, first, language, "\n".join(lines[first - 1 : number - 1])))
            first = 0
        elif fence and not first:
            language, first = fence[1], number + 1
        elif not first:
            prose.append(line)
            continue
        prose.append("")
    assert not first, f"{name}: a block that does not end"
    return Page(name, text, "\n".join(prose) + "\n", tuple(blocks))


def all_pages() -> list[Page]:
    documents = sorted((REPOSITORY / "docs").glob("*.md"))
    names = [str(path.relative_to(REPOSITORY)) for path in documents]
    return [page(name) for name in ("README.md", "mpkv/memory/README.md", *names)]


def bare(cell: str) -> str:
    """A cell without its marks of code."""
    return cell.strip("`")


def names_in(cell: str) -> list[str]:
    return _CODE.findall(cell)


def _cells(line: str) -> list[str]:
    # A bar inside of code is no border.
    inner = re.sub(r"`[^`]*`", lambda code: code[0].replace("|", "\0"), line.strip()[1:-1])
    return [cell.strip().replace("\0", "|") for cell in inner.split("|")]
