"""The commands that the documents name, and how each kind of them is run.

A command is a line of a `sh` block, with the lines that continue it, or whatever stands in
`code` and begins with one of HEADS and has two words. Each must be of a kind.
"""

import enum
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from mpkv.cluster.config import load_cluster
from tests.docs.pages import REPOSITORY, all_pages

HEADS = (
    *("make", "mpkv", "pip", "python", "python3", "pytest", "uv", "git", "curl"),
    *("ps", "top", "ip", "mount", "ulimit", "sysctl", "systemctl", "sudo", "apt", "apt-get"),
    *("docker", "podman", "kubectl", "bash", "sh"),
)

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


class Kind(enum.Enum):
    MAKE = "`make -n` with the same arguments"
    RUN = "as it stands, in the repository"
    LAUNCH = "as it stands, on free ports, with a small tier and a stand-in for vLLM"
    PARSED = "taken by the command's own parser; what it does takes minutes, and has own tests"
    NAMED = "the command, or the module, that is named is there"
    PIP = "what it names is in pyproject.toml, or what `make` itself removes"
    MOUNT = "in a mount namespace with a /dev/shm of its own, which needs root"
    ENGINES = "asked of two real engines, in tests/e2e/test_two_engines.py"


# The first that matches, with a space after each word, is its kind.
KINDS: tuple[tuple[str, Kind], ...] = (
    (r"make ", Kind.MAKE),
    (r"mpkv render \S+ ", Kind.RUN),
    (r"mpkv (\w+ )*--(help|version) ", Kind.RUN),
    (r"mpkv launch \S+ ", Kind.LAUNCH),
    (r"mpkv demo \S+ ", Kind.PARSED),
    (r"mpkv bench \w+ ", Kind.PARSED),
    (r"mpkv \w+ $", Kind.NAMED),
    (r"python -m [\w.]+ $", Kind.NAMED),
    (r"pip (un)?install ", Kind.PIP),
    (r"mount -o remount,", Kind.MOUNT),
    (r"ulimit -\w $", Kind.RUN),
    (r"ps -e $", Kind.ENGINES),
    (r"curl (-s )?localhost:", Kind.ENGINES),
)


@dataclass(frozen=True)
class Command:
    """`words` are those after the assignments, if there are any; of nothing but assignments,
    all are in `env`."""

    place: str
    text: str
    env: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def kind(self) -> Kind | None:
        line = "".join(f"{word} " for word in self.words)
        return next((kind for pattern, kind in KINDS if re.match(pattern, line)), None)


@dataclass(frozen=True)
class Script:
    """The commands of one block, or one that stands in code."""

    place: str
    text: str
    commands: tuple[Command, ...]


def all_scripts() -> list[Script]:
    found = []
    for page in all_pages():
        for block in page.blocks:
            if block.language == "sh":
                place = f"{page.name}:{block.line}"
                commands = tuple(_commands(page.name, block.line, block.text))
                found.append(Script(place, block.text, commands))
        for line, code in page.code():
            words = code.split()
            if len(words) > 1 and words[0] in HEADS:
                place = f"{page.name}:{line}"
                found.append(Script(place, code, (_command(place, code),)))
    return found


def all_commands() -> list[Command]:
    return [command for script in all_scripts() for command in script.commands]


def of_kind(kind: Kind) -> list[Command]:
    return [command for command in all_commands() if command.kind is kind]


def asked_of_engines(http_ports: dict[str, int], port: int, model: str) -> list[Script]:
    """Scripts for two engines, as they are to be run where the nodes of configs/local.toml
    listen on `http_ports` and where `a` answers peers on `port`."""
    cluster = load_cluster(str(REPOSITORY / "configs" / "local.toml"))
    swaps = {f"localhost:{node.http_port}/": node.name for node in cluster.nodes}
    found = []
    for script in all_scripts():
        if not any(command.kind is Kind.ENGINES for command in script.commands):
            continue
        text = script.text.replace(str(cluster.node("a").port), str(port))
        text = text.replace('"model": "tiny-llama"', f'"model": "{model}"')
        for address, name in swaps.items():
            text = text.replace(address, f"localhost:{http_ports[name]}/")
        found.append(Script(script.place, text, script.commands))
    return found


def _commands(page: str, first: int, text: str) -> Iterator[Command]:
    pending, since = "", first
    for number, line in enumerate(text.splitlines(), first):
        pending = f"{pending}\n{line}" if pending else line
        if line.endswith("\\"):
            continue
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:  # a quotation goes on
            continue
        if words:
            yield _command(f"{page}:{since}", pending)
        pending, since = "", number + 1
    assert not pending, f"{page}:{since}: a command that does not end"


def _command(place: str, text: str) -> Command:
    words = shlex.split(text, comments=True)
    count = next((n for n, word in enumerate(words) if not _ASSIGNMENT.match(word)), len(words))
    if _ASSIGNMENT.match(text) and "$(" in text:
        # What it is set to is itself a command, whose words these are.
        count = len(words)
    return Command(place, text, tuple(words[:count]), tuple(words[count:]))
