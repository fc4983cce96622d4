"""Whatever a cluster file says ends in a command that can be run, or in one sentence."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mpkv.cluster import sections
from mpkv.cluster.config import Cluster, load_cluster
from mpkv.cluster.settings import decode_settings
from mpkv.errors import ConfigRefused
from mpkv_cli.render import render_command
from mpkv_cli.serve import serve_command
from tests.cli.command import GOOD, run_mpkv, write_config

LONGEST_SENTENCE = 700

GOOD_TABLES: dict[str, Any] = {
    "cluster": {"allow_insecure": True},
    "vllm": {"model": "some/model", "args": ["--seed", "1"], "env": {"X": "1"}},
    "tier": {"size": "1MiB"},
    "pull": {"deadline_s": 10.0},
    "nixl": {"backends": ["UCX"]},
    "node": [
        {"name": "a", "port": 7710, "listen": "0.0.0.0", "advertise": "node-a"},
        {"name": "b", "port": 7730, "listen": "10.0.0.8", "vllm_env": {"Y": "2"}},
    ],
}

ODD_STRINGS = [
    "", " ", "\0", "a\0b", "a\nb", "\x1b[31m", "\u202e", "\ud7ff", "\U0001f600", "é", "x" * 5000,
    "/" + "x" * 5000, "./" + "y/" * 3000, "~", "~nobody-of-that-name/x", "~/x", "..", "/", "-x",
    "a=b", "{", "{}", "0", "1.2.3", "10.0.0.256", "0x7f.1", "127.1", "224.0.0.1", "240.0.0.1",
    "255.255.255.255", "0.0.0.0", "0.0.0.1", "::", "fe80::1", "fe80::1%eth0", "[::1]", "localhost",
    "LOCALHOST.", "node-a:1", "a..b", ".", "-a.b", "a-.b", "x" * 64 + ".y", "10.0.0.7",
    "UCX", "ucx", "POSIX", "NONE", "off", "full", "64GiB", "999999999999TiB", "0KiB", "--port",
    "PYTHONHASHSEED", "sha256_cbor", "4294967296",
]  # fmt: skip
ODD_NUMBERS = [
    0, 1, -1, 59, 60, 65535, 65536, 7711, 1 << 31, 1 << 63, 1 << 64, 10**400, -(10**30),
    0.0, -0.0, 0.125, 7710.0, 1e308, float("inf"), float("-inf"), float("nan"), True, False,
]  # fmt: skip
# As TOML writes them: Python would not print so large a number.
WRITTEN = [
    "1979-05-27T07:32:00Z",
    "1979-05-27T00:32:00",
    "1979-05-27",
    "07:32:00",
    f"0x{'f' * 5000}",
]

scalars = st.sampled_from(ODD_STRINGS) | st.sampled_from(ODD_NUMBERS) | st.text(max_size=20)
written = st.sampled_from([("written", text) for text in WRITTEN])
leaves = scalars | written
odd_values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(ODD_STRINGS) | st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = {
    name: struct.__struct_fields__
    for name, struct in [
        ("cluster", sections.ClusterSection),
        ("vllm", sections.VllmSection),
        ("tier", sections.TierSection),
        ("pull", sections.PullSection),
        ("nixl", sections.NixlSection),
        ("node", sections.Node),
    ]
}


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A good file with one to three odd places."""
    tables = copy.deepcopy(GOOD_TABLES)
    for _ in range(draw(st.integers(1, 3))):
        section = draw(st.sampled_from([*KEYS, "other"]))
        kind = draw(st.sampled_from(["key", "key", "key", "inner", "section", "missing"]))
        key = draw(st.sampled_from(KEYS.get(section, ("any",))))
        table = tables.get(section)
        if section == "node" and isinstance(table, list) and table:
            table = table[draw(st.integers(0, len(table) - 1))]
        if kind == "missing":
            tables.pop(section, None)
        elif kind == "section" or not isinstance(table, dict):
            tables[section] = draw(odd_values | st.lists(st.just(table or {}), max_size=2))
        elif kind == "inner" and key in ("args", "vllm_args", "backends"):
            table[key] = draw(st.lists(leaves, max_size=3))
        elif kind == "inner" and key in ("env", "vllm_env"):
            table[key] = draw(st.dictionaries(st.sampled_from(ODD_STRINGS), leaves, max_size=2))
        else:
            table[key] = draw(odd_values)
    return tables


def as_toml(value: Any) -> str:
    if isinstance(value, dict):
        pairs = ", ".join(f"{as_toml(key)} = {as_toml(inner)}" for key, inner in value.items())
        return f"{{{pairs}}}"
    if isinstance(value, list):
        return f"[{', '.join(as_toml(inner) for inner in value)}]"
    if isinstance(value, tuple):
        return str(value[1])
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value) if value < 0 or value < 10**4000 else hex(value)
    if isinstance(value, float):
        return repr(value)
    # JSON's escapes are TOML's, but for DEL and for pairs of surrogates.
    return '"' + "".join(_escaped(c) for c in value) + '"'


def _escaped(character: str) -> str:
    plain = character.isprintable() and character not in '"\\'
    return character if plain else f"\\U{ord(character):08x}"


def use(cluster: Cluster) -> None:
    """All that is done with a file before vLLM starts."""
    for node in cluster.nodes:
        assert cluster.node(node.name) == node
        command = serve_command(cluster, node, ())
        text = render_command(command)
        assert "\0" not in text
        assert all("=" not in name and name for name in command.env)
        # What a file may say, an engine takes.
        told = msgspec.to_builtins(cluster.engine_settings(node))
        assert decode_settings(json.loads(json.dumps(told))) == cluster.engine_settings(node)


def sentence(path: str) -> str:
    """What is said of a file that is refused; "" if it is not."""
    try:
        use(load_cluster(path))
    except ConfigRefused as refused:
        text = str(refused)
        assert text.startswith(f"{path}: ")
        text = text.removeprefix(f"{path}: ")
        assert text.isprintable(), text
        assert len(text) < LONGEST_SENTENCE, text
        assert text[-1] in ".?", text
        return text
    return ""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(documents())
@example({**GOOD_TABLES, "vllm": [GOOD_TABLES["vllm"]]})
@example({**GOOD_TABLES, "vllm": {"model": "~nobody-of-that-name/model"}})
@example({**GOOD_TABLES, "vllm": {"model": "m" * 5000}})
@example({**GOOD_TABLES, "vllm": {"model": "m/" + "m" * 300}})
def test_odd_documents(tmp_path: Path, tables: dict[str, Any]) -> None:
    text = "".join(f"{as_toml(key)} = {as_toml(value)}\n" for key, value in tables.items())
    sentence(write_config(tmp_path, text))


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.integers(0, len(GOOD)), st.integers(0, 20), st.binary(max_size=8) | st.text().map(str.encode)
)
def test_odd_bytes(tmp_path: Path, at: int, removed: int, inserted: bytes) -> None:
    file = tmp_path / "cluster.toml"
    good = GOOD.encode()
    file.write_bytes(good[:at] + inserted + good[at + removed :])
    sentence(str(file))


VLLM = '[vllm]\nmodel = "some/model"'


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "[vllm]",
            "[[vllm]]",
            "[[vllm]]: expected one [vllm], found [[vllm]]; use single brackets, once.",
        ),
        (VLLM, "vllm = 5", "vllm: expected [vllm], found a whole number; write [vllm]."),
        (VLLM, "vllm = []", "vllm: expected [vllm], found an array; write [vllm]."),
        (VLLM, "vllm = 1979-05-27", "vllm: expected [vllm], found a date; write [vllm]."),
        (
            "some/model",
            "~nobody-of-that-name/m",
            '[vllm] model: expected a hub name or a path, found "~nobody-of-that-name/m", which '
            "cannot be looked up (Could not determine home directory); correct it.",
        ),
        (
            "some/model",
            "m" * 5000,
            f'[vllm] model: expected a hub name or a path, found "{"m" * 80}... (5,000 '
            'characters)"; correct it, and begin a path with / or ./.',
        ),
        (
            "some/model",
            "m" * 300,
            f'[vllm] model: expected a hub name or a path, found "{"m" * 80}... (300 '
            'characters)", which cannot be looked up (File name too long); correct it.',
        ),
        (
            "[tier]",
            'args = ["--seed", "1\\u0000"]\n[tier]',
            '[vllm] args: expected arguments for a command, found "1\\x00"; '
            "take the NUL character out.",
        ),
        (
            "[tier]",
            'env = { "A=B" = "1" }\n[tier]',
            '[vllm] env: expected names of letters, digits and "_" that begin with no digit, '
            'found "A=B"; rename it.',
        ),
        (
            "[tier]",
            'env = { A = "\\u0000" }\n[tier]',
            '[vllm] env: expected text for A, found "\\x00"; take the NUL character out.',
        ),
        (
            "[tier]",
            "env = { A = 1 }\n[tier]",
            "[vllm] env: expected a string in quotes, found a whole number; "
            "write a string in quotes.",
        ),
        (
            "[tier]",
            '[nixl]\nbackends = [""]\n[tier]',
            "[nixl] backends: expected NIXL backends (UCX, LIBFABRIC, Mooncake, UCCL, GPUNETIO), "
            'found ""; write "UCX".',
        ),
        (
            "[tier]",
            '[nixl]\nbackends = ["libfabrik"]\n[tier]',
            "[nixl] backends: expected NIXL backends (UCX, LIBFABRIC, Mooncake, UCCL, GPUNETIO), "
            'found "libfabrik"; write "LIBFABRIC".',
        ),
        (
            "[tier]",
            '[nixl]\nbackends = ["UCX", "POSIX"]\n[tier]',
            "[nixl] backends: expected NIXL backends that reach peers (UCX, LIBFABRIC, Mooncake, "
            'UCCL, GPUNETIO), found "POSIX", which reaches storage; write ["UCX"].',
        ),
        (
            "7710",
            '7710\nadvertise = "0"',
            '[[node]] "a" advertise: expected an IPv4 address of four numbers up to 255, found '
            '"0"; write it in full, such as "10.0.0.7".',
        ),
        (
            "7710",
            '7710\nadvertise = "10.0.0.256"',
            '[[node]] "a" advertise: expected an IPv4 address of four numbers up to 255, found '
            '"10.0.0.256"; write it in full, such as "10.0.0.7".',
        ),
        (
            "7710",
            '7710\nadvertise = "224.0.0.1"',
            '[[node]] "a" advertise: expected an address that peers can connect to, found '
            "224.0.0.1, a multicast address; write the address or the host name by which they "
            "reach this node.",
        ),
        (
            "7710",
            '7710\nlisten = "255.255.255.255"',
            '[[node]] "a" listen: expected an IP address of the node, found 255.255.255.255, '
            "the broadcast address; write the address of one of its interfaces.",
        ),
        (
            "7710",
            '7710\nadvertise = "a..b"',
            '[[node]] "a" advertise: expected a host name or an IPv4 address, found "a..b"; '
            'names have letters, digits, "-", "_" and ".", up to 253 in all and 63 between dots.',
        ),
        (
            "7710",
            "7710.0",
            '[[node]] "a" port: expected a whole number, found a number; write a whole number.',
        ),
        (
            "7710",
            "true",
            '[[node]] "a" port: expected a whole number, found true or false; '
            "write a whole number.",
        ),
        (
            "7710",
            f"0x1{'0' * 5000}",
            '[[node]] "a" port: expected a port from 1 to 65535 (rank r uses port + r), found a '
            "number beyond 10^18; choose another.",
        ),
        (
            "7710",
            "7710\ndata_parallel_size = 70000",
            '[[node]] "a" data_parallel_size: expected 1 to 1024, found 70000; '
            "write the number of ranks.",
        ),
        (
            '"1MiB"',
            '"999999999999TiB"',
            "[tier] size: expected a size below 131072TiB, which no machine has, found "
            '"999999999999TiB"; write for example "64GiB".',
        ),
        (
            "[tier]",
            "[pull]\ndeadline_s = nan\n[tier]",
            "[pull] deadline_s: expected seconds above 0 and up to 59, found nan; "
            "write for example 10.0.",
        ),
        (
            "some/model",
            "a\\u001b[31mb",
            '[vllm] model: expected a hub name or a path, found "a\\x1b[31mb"; '
            "correct it, and begin a path with / or ./.",
        ),
    ],
)
def test_each_oddity_is_one_sentence(tmp_path: Path, before: str, after: str, said: str) -> None:
    assert before in GOOD
    assert sentence(write_config(tmp_path, GOOD.replace(before, after))) == said


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_byte_order_mark_is_no_matter(tmp_path: Path, mark: str) -> None:
    assert sentence(write_config(tmp_path, mark + GOOD)) == ""


def test_files_that_are_no_cluster_files(tmp_path: Path) -> None:
    large, fifo, loop = (tmp_path / name for name in ("large", "fifo", "loop"))
    with large.open("wb") as file:
        file.truncate(100 << 20)
    os.mkfifo(fifo)
    loop.symlink_to(loop)
    assert sentence(str(large)) == "is larger than 1 MiB and no cluster file; name another."
    assert sentence(str(fifo)).startswith("is no regular file; name the cluster file")
    assert sentence("/dev/null").startswith("is no regular file")
    assert sentence(str(loop)) == (
        "cannot be read (Too many levels of symbolic links); name an existing cluster file."
    )
    deep = write_config(tmp_path, f"{GOOD}\nx = {'[' * 20000}{']' * 20000}\n")
    assert sentence(deep).startswith("arrays or tables are nested too deep")
    digits = write_config(tmp_path, GOOD.replace("7710", "7" * 5000))
    assert sentence(digits).startswith("TOML: Exceeds the limit (4300 digits)")
    with pytest.raises(ConfigRefused, match=r"a\\x00b: is no file's name; name a cluster file"):
        load_cluster("a\0b")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            "advertise",
            "0",
            'advertise: expected an IPv4 address of four numbers up to 255, found "0"',
        ),
        ("listen", "224.0.0.1", "listen: expected an IP address of the node, found 224.0.0.1"),
        ("backends", ["ucx"], "backends: expected NIXL backends (UCX, LIBFABRIC"),
        ("port", 70000, "port: expected a port from 1 to 65535"),
        ("port", True, "Expected `int`, got `bool` - at `$.port`"),
        ("ranks", 0, "ranks: expected 1 or more, found 0"),
        ("lanes", 1 << 70, "lanes: expected 1 to 16, found a number beyond 10^18"),
        ("deadline_s", 60.0, "deadline_s: expected seconds above 0 and up to 59"),
        ("trace_dir", "a\0b", 'trace_dir: expected arguments for a command, found "a\\x00b"'),
        ("node", "a/b", "node: expected 1-63 letters"),
        ("integrity", "x" * 5000, "Invalid enum value 'xxx"),
        (
            "peers",
            [{"name": "b", "host": "b", "port": 1}, {"name": "c", "host": "1.2.3", "port": 1}],
            "peers[1].host: expected an IPv4 address of four numbers up to 255",
        ),
    ],
)
def test_an_engine_refuses_what_a_file_may_not_say(key: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigRefused) as caught:
        decode_settings({"node": "a", key: value})
    text = str(caught.value)
    assert text.startswith('kv_connector_extra_config["mpkv"]')
    assert said in text
    assert text.isprintable()
    assert len(text) < LONGEST_SENTENCE


@pytest.mark.parametrize("raw", [None, 5, [], {}, {"node": 5}, {"x": 1}])
def test_settings_of_another_shape(raw: Any) -> None:
    with pytest.raises(ConfigRefused, match=r"Expected the object that `mpkv render"):
        decode_settings(raw)


def test_the_command_says_so_too(tmp_path: Path) -> None:
    text = GOOD.replace("some/model", "~nobody-of-that-name/model")
    for command in ("render", "launch"):
        done = run_mpkv(command, write_config(tmp_path, text))
        assert done.returncode == 1
        assert done.stdout == ""
        assert done.stderr.startswith("Error: ")
        assert done.stderr.count("\n") == 1
        assert "~nobody-of-that-name/model" in done.stderr


def test_an_argument_that_only_looks_like_json_is_rendered_as_it_is(tmp_path: Path) -> None:
    done = run_mpkv("render", write_config(tmp_path, GOOD), "--", "{no json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("'{no json'\n")
