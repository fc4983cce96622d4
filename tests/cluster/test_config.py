"""Cluster files: what is read from a good one, and the one line for each bad one."""

import re
from pathlib import Path

import pytest

from mpkv.cluster.config import Cluster, load_cluster
from mpkv.cluster.settings import PeerAddress
from mpkv.cluster.sizes import parse_size
from mpkv.errors import ConfigRefused
from tests.cli.command import GOOD, NODE, REPOSITORY, write_config


def load(folder: Path, text: str) -> Cluster:
    return load_cluster(write_config(folder, text))


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(ConfigRefused) as caught:
        load(folder, text)
    line = str(caught.value)
    assert "\n" not in line
    file, separator, complaint = line.partition("cluster.toml: ")
    assert file == f"{folder}/"
    assert separator
    return complaint


def node(**changes: str) -> str:
    keys = {"name": '"a"', "port": "7710", **changes}
    return "[[node]]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items())


def with_nodes(*nodes: str, allow_insecure: bool = False) -> str:
    cluster = "[cluster]\nallow_insecure = true\n" if allow_insecure else ""
    return cluster + GOOD.replace(NODE, "\n" + "\n".join(nodes))


def test_defaults_and_settings_of_a_node(tmp_path: Path) -> None:
    cluster = load(tmp_path, with_nodes(node(), node(name='"b"', port="7730")))
    settings = cluster.engine_settings(cluster.node("b"), "/traces")
    assert settings.node == "b"
    assert (settings.listen, settings.port, settings.advertise) == ("127.0.0.1", 7730, "127.0.0.1")
    assert settings.peers == (PeerAddress("a", "127.0.0.1", 7710, 1),)
    assert settings.deadline_s == 10.0
    assert settings.integrity == "off"
    assert settings.content == ""
    assert settings.backends == ("UCX",)
    assert settings.trace_dir == "/traces"
    assert cluster.cluster.hash_seed == "0"
    assert cluster.cluster.hash_algorithm == "sha256_cbor"


def test_listening_and_advertised_addresses_are_two_settings(tmp_path: Path) -> None:
    text = with_nodes(
        node(listen='"0.0.0.0"', advertise='"node-a"', data_parallel_size="8"),
        node(name='"b"', listen='"0.0.0.0"', advertise='"node-b"'),
        allow_insecure=True,
    )
    cluster = load(tmp_path, text)
    settings = cluster.engine_settings(cluster.node("b"))
    assert (settings.listen, settings.advertise) == ("0.0.0.0", "node-b")
    assert settings.peers == (PeerAddress("a", "node-a", 7710, 8),)
    assert settings.allow_insecure is True


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        (
            "[tier]",
            "[teir]",
            'unknown key "teir"; did you mean "tier"?',
        ),
        (
            "port =",
            "prot =",
            'unknown key "prot" in [[node]] "a"; did you mean "port"?',
        ),
        (
            "model =",
            "xyzzy = 1\nmodel =",
            'unknown key "xyzzy" in [vllm]; known keys are model, revision, args, env.',
        ),
        (
            "7710",
            '"7710"',
            '[[node]] "a" port: expected a whole number, found a string in quotes; '
            "write a whole number.",
        ),
        (
            '"1MiB"',
            "64",
            "[tier] size: expected a string in quotes, found a whole number; "
            "write a string in quotes.",
        ),
        (
            'name = "a"',
            "name = true",
            "[[node]] #1 name: expected a string in quotes, found true or false; "
            "write a string in quotes.",
        ),
        ('name = "a"\n', "", '[[node]] #1: expected the key "name", found none; add it.'),
        (
            '[tier]\nsize = "1MiB"\n',
            "",
            "[tier]: expected this section, found none; add it to the file.",
        ),
        (NODE, "", "[[node]]: expected this section, found none; add it to the file."),
        ("[[node]]", "[node]", "[node]: expected [[node]], found [node]; double the brackets."),
        (
            "[tier]",
            "[tier",
            "line 4, column 6: Expected ']' at the end of a table declaration; "
            "correct the TOML there.",
        ),
        (
            "1MiB",
            "64 GB",
            '[tier] size: expected one of the units KiB, MiB, GiB, TiB, found "GB" in "64 GB"; '
            'sizes are powers of two here: write "64GiB".',
        ),
        (
            'size = "1MiB"',
            'size = ""',
            '[tier] size: expected a whole number and a unit, such as "64GiB", found ""; '
            "write one of the units KiB, MiB, GiB, TiB.",
        ),
        (
            'size = "1MiB"',
            'size = "1MiB"\nsync_load_budget = "64"',
            '[tier] sync_load_budget: expected a size with a unit, found "64"; write "64GiB" if '
            "that is meant; leave it out for none.",
        ),
        (
            'size = "1MiB"',
            'size = "9999999999999TiB"',
            '[tier] size: expected a whole number and a unit, such as "64GiB", found '
            '"9999999999999TiB"; write one of the units KiB, MiB, GiB, TiB.',
        ),
        (
            'size = "1MiB"',
            'size = "1MiB"\nhuge_pages = "on"',
            '[tier] huge_pages: expected "auto" or "off", found "on"; leave it out for "auto".',
        ),
        (
            "[tier]",
            "[pull]\ndeadline_s = 0\n[tier]",
            "[pull] deadline_s: expected seconds above 0 and up to 59, found 0.0; "
            "write for example 10.0.",
        ),
        (
            "[tier]",
            '[pull]\nintegrity = "always"\n[tier]',
            '[pull] integrity: expected "off", "sampled" or "full", found "always"; '
            'write "full" to check every block.',
        ),
        (
            "[tier]",
            "[pull]\nintegrity = true\n[tier]",
            "[pull] integrity: expected a string in quotes, found true or false; "
            "write a string in quotes.",
        ),
        (
            "[tier]",
            '[cluster]\nhash_seed = "random"\n[tier]',
            '[cluster] hash_seed: expected a whole number below 2^32 in quotes, found "random"; '
            'write the same for all nodes, for example "0".',
        ),
        (
            "[tier]",
            '[cluster]\ncontent = "run\\t17"\n[tier]',
            "[cluster] content: expected up to 64 printable ASCII characters, found "
            '"run\\t17"; write for example "run-17".',
        ),
        (
            "[tier]",
            '[cluster]\nhash_algorithm = "sha256"\n[tier]',
            "[cluster] hash_algorithm: expected one of sha256_cbor, xxhash_cbor, found "
            '"sha256"; others hash differently in each process.',
        ),
        (
            "[tier]",
            "[nixl]\nbackends = []\n[tier]",
            '[nixl] backends: expected NIXL backends, found none; write ["UCX"].',
        ),
        (
            "[tier]",
            "[pull]\nhead_start = 0.5\n[tier]",
            "[pull] head_start: expected a share of the tier from 0 to 0.125, found 0.5; "
            "write for example 0.05.",
        ),
        (
            "[tier]",
            "[nixl]\nlanes = 0\n[tier]",
            "[nixl] lanes: expected 1 to 16, found 0; write 2.",
        ),
        (
            "[tier]",
            '[vllm.env]\nPYTHONHASHSEED = "3"\n[tier]',
            "[vllm] env: PYTHONHASHSEED must be equal on all nodes; "
            "set hash_seed in [cluster] instead.",
        ),
    ],
)
def test_each_mistake_is_one_line_with_key_and_remedy(
    tmp_path: Path, before: str, after: str, complaint: str
) -> None:
    assert before in GOOD
    assert refusal(tmp_path, GOOD.replace(before, after)) == complaint


@pytest.mark.parametrize(
    ("nodes", "complaint"),
    [
        (
            [node(listen='"0.0.0.0"')],
            '[[node]] "a" listen: 0.0.0.0 is every address of the node, and peers need one to '
            'connect to; set "advertise" to the address by which they reach this node.',
        ),
        (
            [node(), node(name='"b"', port="7730", advertise='"10.0.0.8"')],
            '[[node]] "a" listen: 127.0.0.1 is reachable on its own host only, and other nodes '
            'are on other hosts; set "listen" to an address of the node, or "advertise".',
        ),
        (
            [node(listen='"::1"')],
            '[[node]] "a" listen: expected an IPv4 address, found ::1; nodes reach each other '
            "by IPv4 only.",
        ),
        (
            [node(listen='"::"')],
            '[[node]] "a" listen: :: is every address of the node, and peers need one to '
            'connect to; set "advertise" to the address by which they reach this node.',
        ),
        (
            [node(listen='"10.0.0.7"')],
            '[[node]] "a" listen: 10.0.0.7 is reachable from other hosts and the control port is '
            "not authenticated; set allow_insecure = true in [cluster] if that network is "
            'trusted, or listen = "127.0.0.1".',
        ),
        (
            [node(listen='"node-a"')],
            '[[node]] "a" listen: expected an IP address of the node, found "node-a"; write the '
            'address (a host name goes into "advertise").',
        ),
        (
            [node(advertise='"0.0.0.0"')],
            '[[node]] "a" advertise: expected an address that peers can connect to, found '
            "0.0.0.0; write the address or the host name by which they reach this node.",
        ),
        (
            [node(advertise='"node-a:7710"')],
            '[[node]] "a" advertise: expected a host name or an IPv4 address alone, found '
            '"node-a:7710"; leave out scheme and port (the port is "port").',
        ),
        (
            [node(), node(port="7711")],
            '[[node]] "a" name: two nodes are named "a"; give each its own name.',
        ),
        (
            [node(data_parallel_size="4"), node(name='"b"', port="7713")],
            '[[node]] "b" port: 127.0.0.1:7713 is already the port of [[node]] "a"; '
            "choose another port.",
        ),
        (
            [node(), node(name='"b"', port="7711", http_port="7710")],
            '[[node]] "b" http_port: 127.0.0.1:7710 is already the port of [[node]] "a"; '
            "choose another port.",
        ),
        (
            [node(port="65530", data_parallel_size="8")],
            '[[node]] "a" port: expected a port from 1 to 65528 (rank r uses port + r), '
            "found 65530; choose another.",
        ),
        (
            [node(data_parallel_size="0")],
            '[[node]] "a" data_parallel_size: expected 1 or more, found 0; '
            "write the number of ranks.",
        ),
        (
            [node(name='"a/b"')],
            '[[node]] "a/b" name: expected 1-63 letters, digits, ".", "_" or "-", '
            'found "a/b"; rename it.',
        ),
    ],
)
def test_each_mistake_in_a_node(tmp_path: Path, nodes: list[str], complaint: str) -> None:
    assert refusal(tmp_path, with_nodes(*nodes)) == complaint


def test_equal_ports_on_different_hosts_are_fine(tmp_path: Path) -> None:
    text = with_nodes(
        node(listen='"10.0.0.1"'), node(name='"b"', listen='"10.0.0.2"'), allow_insecure=True
    )
    assert [n.port for n in load(tmp_path, text).nodes] == [7710, 7710]


def test_a_missing_and_a_foreign_file(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.toml")
    with pytest.raises(ConfigRefused, match=re.escape(f"{missing}: no such file; name an")):
        load_cluster(missing)
    with pytest.raises(ConfigRefused, match="is a directory; name the cluster file in it"):
        load_cluster(str(tmp_path))
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"# \xe4")
    with pytest.raises(ConfigRefused, match="is not UTF-8 text; save it as UTF-8"):
        load_cluster(str(latin))


def test_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may read any file, so the refusal has to come from somewhere else.
    def refuse(path: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("mpkv.cluster.config_text.os.open", refuse)
    with pytest.raises(
        ConfigRefused,
        match=r"x\.toml: cannot be read \(Permission denied\); make it readable for this user",
    ):
        load_cluster("x.toml")


def test_a_node_that_is_not_in_the_file(tmp_path: Path) -> None:
    cluster = load(tmp_path, with_nodes(node(), node(name='"b"', port="7730")))
    with pytest.raises(ConfigRefused, match=r'no \[\[node\]\] is named "c"; the file has a, b\.'):
        cluster.node("c")
    with pytest.raises(ConfigRefused, match=r"has 2 nodes; choose one with --node: a, b\."):
        cluster.node(None)


def test_the_only_node_needs_no_name(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD).node(None).name == "a"


def test_a_model_beside_the_file_is_a_path_and_a_hub_name_stays(tmp_path: Path) -> None:
    cluster = load(tmp_path, GOOD)
    assert cluster.model() == "some/model"
    (tmp_path / "some" / "model").mkdir(parents=True)
    assert cluster.model() == str(tmp_path / "some" / "model")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64GiB", 64 << 30),
        ("64 GiB", 64 << 30),
        ("512MiB", 512 << 20),
        (" 4KiB ", 4096),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("64GB", 'write "64GiB"'),
        ("64 GB", 'write "64GiB"'),
        ("512M", 'write "512MiB"'),
        ("64gib", 'write "64GiB"'),
        ("64", 'found "64"; write "64GiB" if that is meant'),
        ("0GiB", 'expected a size above zero, found "0GiB"'),
        ("1.5GiB", "expected a whole number and a unit"),
        ("-1GiB", "expected a whole number and a unit"),
        ("", "expected a whole number and a unit"),
    ],
)
def test_bad_sizes_name_the_right_one(text: str, remedy: str) -> None:
    with pytest.raises(ConfigRefused, match=re.escape(remedy)):
        parse_size(text)


def test_the_shipped_files_are_good() -> None:
    local = load_cluster(str(REPOSITORY / "configs" / "local.toml"))
    assert [n.name for n in local.nodes] == ["a", "b"]
    h200 = load_cluster(str(REPOSITORY / "configs" / "two-node-h200.toml"))
    assert [n.data_parallel_size for n in h200.nodes] == [8, 8]
    assert h200.tier.size_bytes == 64 << 30
