"""Every command in the documents does what it is there for."""

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path

import click
import pytest

from mpkv.cluster.config import load_cluster
from mpkv_cli.main import main
from tests.cli.command import free_port, stand_in_vllm
from tests.docs.commands import Command, Kind, all_scripts, of_kind
from tests.docs.pages import REPOSITORY
from tests.support.install_cpu import UNMATCHED

STAND_IN = "import json, sys; print(json.dumps(sys.argv))"


def each(kind: Kind) -> pytest.MarkDecorator:
    found = of_kind(kind)
    return pytest.mark.parametrize("command", found, ids=[command.place for command in found])


def run(text: str, folder: Path, env: dict[str, str], cwd: Path = REPOSITORY) -> str:
    """What the command prints, where `mpkv` is this very one."""
    shim = folder / "bin" / "mpkv"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m mpkv_cli.main "$@"\n')
    shim.chmod(0o755)
    paths = [str(REPOSITORY), str(REPOSITORY / "cli"), *env.pop("PYTHONPATH", "").split(":")]
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=cwd,
        env={
            **os.environ,
            **env,
            "PATH": f"{shim.parent}:{os.environ['PATH']}",
            "PYTHONPATH": ":".join(filter(None, paths)),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_command_is_of_a_kind() -> None:
    unknown = []
    for script in all_scripts():
        kinds = {command.kind for command in script.commands if command.words}
        # Only these are run as a whole, with what the others have set.
        whole = kinds == {Kind.ENGINES}
        alone = Kind.ENGINES not in kinds and all(command.words for command in script.commands)
        if None in kinds or not (whole or alone):
            unknown += [f"{command.place}: {command.text}" for command in script.commands]
    assert unknown == [], "say in tests/docs/commands.py how it is run"


def test_every_kind_is_there() -> None:
    """Else what finds commands is broken, or a kind is left over."""
    assert {kind for kind in Kind if not of_kind(kind)} == set()


@each(Kind.MAKE)
def test_make(command: Command) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = [word for word in command.words[1:] if "=" not in word]
    # A folder of that name would be made already.
    assert {*targets} <= {*re.findall(r"^\.PHONY: (.*)", makefile, re.MULTILINE)[0].split()}
    variables = [word.partition("=")[0] for word in command.words if "=" in word]
    assert [name for name in variables if not re.search(rf"\b{name}\b", makefile)] == []
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "-n", *command.words[1:]],
        cwd=REPOSITORY,
        env={**env, **dict(word.split("=", 1) for word in command.env)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@each(Kind.RUN)
def test_what_runs_at_once(command: Command, tmp_path: Path) -> None:
    assert run(command.text, tmp_path, {}).strip()


@each(Kind.LAUNCH)
def test_launch(command: Command, tmp_path: Path) -> None:
    config, node = command.words[2], command.words[command.words.index("--node") + 1]
    _write_for_here(REPOSITORY / config, tmp_path / config)
    env = stand_in_vllm(tmp_path, STAND_IN)
    argv = json.loads(run(command.text, tmp_path, env, cwd=tmp_path))
    assert argv[1] == "serve"
    transfer = json.loads(argv[argv.index("--kv-transfer-config") + 1])
    settings = transfer["kv_connector_extra_config"]["mpkv"]
    assert settings["node"] == node
    if "--trace-dir" in command.words:
        traces = command.words[command.words.index("--trace-dir") + 1]
        assert settings["trace_dir"] == str(tmp_path / traces)
    if "--" in command.words:
        given = command.words[command.words.index("--") + 1 :]
        assert tuple(argv[-len(given) :]) == given


def _write_for_here(config: Path, path: Path) -> None:
    """As it is, but for ports that are free, and a tier and a model that fit this machine."""
    text = re.sub(r'(?m)^size = ".*"', 'size = "1MiB"', config.read_text())
    base = free_port()
    for name in ("port", "http_port"):
        for old in dict.fromkeys(re.findall(rf"(?m)^{name} = (\d+)$", text)):
            base = _free_ports(base + 16)
            text = re.sub(rf"(?m)^{name} = {old}$", f"{name} = {base}", text)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    model = load_cluster(str(path)).model()
    if Path(model).is_absolute():
        Path(model).mkdir(parents=True)


def _free_ports(base: int) -> int:
    """As many from there on as a node of eight ranks takes."""
    while True:
        base = base if base < 60_000 else 20_000
        with ExitStack() as stack:
            try:
                for port in range(base, base + 8):
                    stack.enter_context(socket.create_server(("", port)))
            except OSError:
                base += 16
                continue
        return base


@each(Kind.PARSED)
def test_what_takes_long_is_understood(command: Command) -> None:
    found, words = _resolve(command.words[1:])
    with found.make_context(command.words[0], words) as context:
        config = context.params.get("config")
    if config is not None:
        load_cluster(str(REPOSITORY / config))


@each(Kind.NAMED)
def test_what_is_named_is_there(command: Command) -> None:
    if command.words[0] == "python":
        assert importlib.util.find_spec(command.words[2]) is not None
    else:
        assert _resolve(command.words[1:])[1] == []


def _resolve(words: tuple[str, ...]) -> tuple[click.Command, list[str]]:
    """The subcommand that is meant, and what is left for it."""
    found: click.Command = main
    left = list(words)
    while isinstance(found, click.Group) and left:
        subcommand = found.get_command(click.Context(found), left[0])
        assert subcommand is not None, f"there is no {left[0]}"
        found = subcommand
        del left[0]
    return found, left


@each(Kind.PIP)
def test_pip(command: Command) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    if command.words[1] == "uninstall":
        assert set(command.words[2:]) == set(UNMATCHED)
    else:
        extras = re.fullmatch(r"\.\[(\w+)\]", command.words[2])
        assert extras is not None
        assert extras[1] in project["optional-dependencies"]


@each(Kind.MOUNT)
def test_mount(command: Command) -> None:
    # Over one of its own: what is mounted here already must stay as it is.
    script = f"mount -t tmpfs tmpfs /dev/shm && {command.text}"
    unshare = ["unshare", "--mount", "--propagation", "private"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"]).returncode:
        pytest.skip("no mount namespaces here: they need root")
    done = subprocess.run(
        [*unshare, "sh", "-c", script], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
