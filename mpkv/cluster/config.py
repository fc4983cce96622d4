"""Cluster files: one TOML file names every node, its addresses and how vLLM is started.

Whatever is wrong with a file ends in one `ConfigRefused` of one line, which names the
file, the key, what was expected and found, and the remedy.
"""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import msgspec

from mpkv.cluster.config_text import decode, parse_size, read_toml, refuse
from mpkv.cluster.settings import EngineSettings, Integrity, PeerAddress, is_loopback
from mpkv.errors import ConfigRefused

# It comes on top of what other pulls may claim, a quarter.
LARGEST_HEAD_START = 0.125
HASH_ALGORITHMS = ("sha256_cbor", "xxhash_cbor")


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class ClusterSection(_Section, frozen=True):
    """What all nodes agree on. `hash_seed` becomes every node's PYTHONHASHSEED."""

    allow_insecure: bool = False
    hash_seed: str = "0"
    hash_algorithm: str = "sha256_cbor"


class VllmSection(_Section, frozen=True):
    """`revision` names the weights: nodes with different ones never share blocks."""

    model: str
    revision: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}


class TierSection(_Section, frozen=True):
    """`size` is the CPU memory of each data-parallel rank.

    `huge_pages` "auto" uses them where /dev/shm is mounted with `huge=advise` or more.
    Hits that fit `sync_load_budget` together are loaded within a step; "": none are.
    """

    size: str
    huge_pages: str = "auto"
    sync_load_budget: str = ""

    @property
    def size_bytes(self) -> int:
        return parse_size(self.size)

    @property
    def sync_load_budget_bytes(self) -> int:
        return parse_size(self.sync_load_budget) if self.sync_load_budget else 0


class PullSection(_Section, frozen=True):
    """`head_start` is the share of the tier kept ready for pulls that begin while the
    scheduler is still busy with a step. `integrity` is one of `Integrity`: which blocks are
    checked after the READ."""

    deadline_s: float = 10.0
    head_start: float = 0.0
    integrity: str = "off"


class NixlSection(_Section, frozen=True):
    """`lanes` is how many NIXL agents of an engine share a large READ."""

    backends: tuple[str, ...] = ("UCX",)
    lanes: int = 2


class Node(_Section, frozen=True):
    """One vLLM server. Data-parallel rank `r` answers its peers on `port + r`.

    `http_port` is the port of vLLM's own API; 0 leaves it to vLLM.
    """

    name: str
    port: int
    listen: str = "127.0.0.1"
    advertise: str = ""
    http_port: int = 0
    data_parallel_size: int = 1
    vllm_args: tuple[str, ...] = ()
    vllm_env: dict[str, str] = {}

    @property
    def reached_at(self) -> str:
        return self.advertise or self.listen

    @property
    def ports(self) -> range:
        return range(self.port, self.port + self.data_parallel_size)


class _File(_Section, frozen=True):
    vllm: VllmSection
    tier: TierSection
    node: tuple[Node, ...]
    cluster: ClusterSection = ClusterSection()
    pull: PullSection = PullSection()
    nixl: NixlSection = NixlSection()


@dataclass(frozen=True)
class Cluster:
    """A cluster file that has passed every check; `path` is as the user wrote it."""

    path: str
    cluster: ClusterSection
    vllm: VllmSection
    tier: TierSection
    pull: PullSection
    nixl: NixlSection
    nodes: tuple[Node, ...]

    def node(self, name: str | None) -> Node:
        """The node of that name; without a name, the only node there is."""
        known = ", ".join(node.name for node in self.nodes)
        if name is None:
            if len(self.nodes) > 1:
                raise ConfigRefused(
                    f"{self.path}: the file has {len(self.nodes)} nodes; "
                    f"choose one with --node: {known}."
                )
            return self.nodes[0]
        for node in self.nodes:
            if node.name == name:
                return node
        raise ConfigRefused(
            f'{self.path}: no [[node]] is named "{name}"; the file has {known}. '
            "Choose one of them with --node, or add the node to the file."
        )

    def model(self) -> str:
        """The model as vLLM shall get it: a path is absolute, a hub name unchanged."""
        model = Path(self.vllm.model).expanduser()
        beside_file = Path(self.path).parent / model
        if beside_file.exists() or names_a_path(self.vllm.model):
            return str(beside_file.resolve())
        return self.vllm.model

    def engine_settings(self, node: Node, trace_dir: str = "") -> EngineSettings:
        """What each engine of `node` is told of the cluster."""
        peers = tuple(
            PeerAddress(other.name, other.reached_at, other.port, other.data_parallel_size)
            for other in self.nodes
            if other.name != node.name
        )
        return EngineSettings(
            node=node.name,
            listen=node.listen,
            port=node.port,
            ranks=node.data_parallel_size,
            advertise=node.reached_at,
            allow_insecure=self.cluster.allow_insecure,
            peers=peers,
            deadline_s=self.pull.deadline_s,
            head_start=self.pull.head_start,
            backends=self.nixl.backends,
            lanes=self.nixl.lanes,
            revision=self.vllm.revision,
            huge_pages=cast(Literal["auto", "off"], self.tier.huge_pages),
            integrity=Integrity(self.pull.integrity),
            trace_dir=trace_dir,
        )


def names_a_path(model: str) -> bool:
    """Whether a model is plainly meant as a path and not as a hub name."""
    return model.startswith(("/", "./", "../", "~"))


def load_cluster(path: str) -> Cluster:
    """Read and check a cluster file. Raises ConfigRefused."""
    file = decode(path, read_toml(path), _File)
    cluster = Cluster(
        path, file.cluster, file.vllm, file.tier, file.pull, file.nixl, nodes=file.node
    )
    _check_values(cluster)
    for node in cluster.nodes:
        _check_node(cluster, node)
    _check_reach(cluster)
    _check_pairs(cluster)
    return cluster


def _check_values(cluster: Cluster) -> None:
    path = cluster.path
    if not cluster.vllm.model:
        refuse(path, "[vllm] model", "expected a model, found an empty string; name or path it")
    sizes = {"size": cluster.tier.size, "sync_load_budget": cluster.tier.sync_load_budget}
    for key, size in sizes.items():
        try:
            if size or key == "size":
                parse_size(size)
        except ConfigRefused as refused:
            # A budget that nobody wants is left out; a size never is.
            remedy = "" if key == "size" else "; leave it out for none"
            refuse(path, f"[tier] {key}", f"{refused}{remedy}")
    if cluster.tier.huge_pages not in ("auto", "off"):
        refuse(
            path,
            "[tier] huge_pages",
            f'expected "auto" or "off", found "{cluster.tier.huge_pages}"; leave it out for "auto"',
        )
    seed = cluster.cluster.hash_seed
    if not (re.fullmatch(r"[0-9]{1,10}", seed) and int(seed) < 1 << 32):
        refuse(
            path,
            "[cluster] hash_seed",
            f'expected a whole number below 2^32 in quotes, found "{seed}"; '
            'write the same for all nodes, for example "0"',
        )
    if cluster.cluster.hash_algorithm not in HASH_ALGORITHMS:
        refuse(
            path,
            "[cluster] hash_algorithm",
            f"expected one of {', '.join(HASH_ALGORITHMS)}, found "
            f'"{cluster.cluster.hash_algorithm}"; others hash differently in each process',
        )
    for key, env in [("[vllm] env", cluster.vllm.env)] + [
        (f'[[node]] "{node.name}" vllm_env', node.vllm_env) for node in cluster.nodes
    ]:
        if "PYTHONHASHSEED" in env:
            refuse(
                path,
                key,
                "PYTHONHASHSEED must be equal on all nodes; set hash_seed in [cluster] instead",
            )
    # A source keeps a lease for a minute at most, and it must outlive the pull.
    if not 0 < cluster.pull.deadline_s <= 59:
        refuse(
            path,
            "[pull] deadline_s",
            f"expected seconds above 0 and up to 59, found {cluster.pull.deadline_s}; "
            "write for example 10.0",
        )
    if not 0 <= cluster.pull.head_start <= LARGEST_HEAD_START:
        refuse(
            path,
            "[pull] head_start",
            f"expected a share of the tier from 0 to {LARGEST_HEAD_START}, found "
            f"{cluster.pull.head_start}; write for example 0.05",
        )
    if cluster.pull.integrity not in list(Integrity):
        refuse(
            path,
            "[pull] integrity",
            f'expected "off", "sampled" or "full", found "{cluster.pull.integrity}"; '
            'write "full" to check every block',
        )
    if not cluster.nixl.backends:
        refuse(path, "[nixl] backends", 'expected NIXL backends, found none; write ["UCX"]')
    if not 1 <= cluster.nixl.lanes <= 16:
        refuse(path, "[nixl] lanes", f"expected 1 to 16, found {cluster.nixl.lanes}; write 2")
    if not cluster.nodes:
        refuse(path, "[[node]]", "expected at least one node, found none; add a [[node]]")


def _check_node(cluster: Cluster, node: Node) -> None:
    path, label = cluster.path, f'[[node]] "{node.name}"'
    # The name becomes part of file names.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", node.name):
        refuse(
            path,
            f"{label} name",
            f'expected 1-63 letters, digits, ".", "_" or "-", found "{node.name}"; rename it',
        )
    if node.data_parallel_size < 1:
        refuse(
            path,
            f"{label} data_parallel_size",
            f"expected 1 or more, found {node.data_parallel_size}; write the number of ranks",
        )
    if not (node.ports.start >= 1 and node.ports.stop <= 65536):
        refuse(
            path,
            f"{label} port",
            f"expected a port from 1 to {65536 - node.data_parallel_size} (rank r uses port + r), "
            f"found {node.port}; choose another",
        )
    if not 0 <= node.http_port <= 65535:
        refuse(
            path,
            f"{label} http_port",
            f"expected a port from 1 to 65535, found {node.http_port}; choose another",
        )
    _check_addresses(cluster, node, label)


def _check_addresses(cluster: Cluster, node: Node, label: str) -> None:
    path = cluster.path
    try:
        listen = ipaddress.ip_address(node.listen)
    except ValueError:
        refuse(
            path,
            f"{label} listen",
            f'expected an IP address of the node, found "{node.listen}"; '
            'write the address (a host name goes into "advertise")',
        )
    if listen.is_unspecified and not node.advertise:
        refuse(
            path,
            f"{label} listen",
            f"{node.listen} is every address of the node, and peers need one to connect to; "
            'set "advertise" to the address by which they reach this node',
        )
    if node.advertise in ("0.0.0.0", "::"):
        refuse(
            path,
            f"{label} advertise",
            f"expected an address that peers can connect to, found {node.advertise}; "
            "write the address or the host name by which they reach this node",
        )
    if re.search(r"[/\s\[\]:]", node.advertise):
        refuse(
            path,
            f"{label} advertise",
            f'expected a host name or an IPv4 address alone, found "{node.advertise}"; '
            'leave out scheme and port (the port is "port")',
        )
    if listen.version == 6:
        refuse(
            path,
            f"{label} listen",
            f"expected an IPv4 address, found {node.listen}; nodes reach each other by IPv4 only",
        )
    if not listen.is_loopback and not cluster.cluster.allow_insecure:
        refuse(
            path,
            f"{label} listen",
            f"{node.listen} is reachable from other hosts and the control port is not "
            "authenticated; set allow_insecure = true in [cluster] if that network is "
            'trusted, or listen = "127.0.0.1"',
        )


def _check_reach(cluster: Cluster) -> None:
    """Nodes on other hosts cannot be mixed with nodes that only this host can reach."""
    here = [node for node in cluster.nodes if is_loopback(node.reached_at)]
    if here and len(here) < len(cluster.nodes):
        refuse(
            cluster.path,
            f'[[node]] "{here[0].name}" listen',
            f"{here[0].reached_at} is reachable on its own host only, and other nodes are on "
            'other hosts; set "listen" to an address of the node, or "advertise"',
        )


def _check_pairs(cluster: Cluster) -> None:
    names: set[str] = set()
    used: dict[tuple[str, int], str] = {}
    for node in cluster.nodes:
        label = f'[[node]] "{node.name}"'
        if node.name in names:
            refuse(
                cluster.path,
                f"{label} name",
                f'two nodes are named "{node.name}"; give each its own name',
            )
        names.add(node.name)
        claims = [(port, "port") for port in node.ports]
        if node.http_port:
            claims.append((node.http_port, "http_port"))
        for port, key in claims:
            # Nodes that are reached at one address share that host's ports.
            holder = used.setdefault((node.reached_at, port), f"{key} of {label}")
            if holder != f"{key} of {label}":
                refuse(
                    cluster.path,
                    f"{label} {key}",
                    f"{node.reached_at}:{port} is already the {holder}; choose another port",
                )
