"""Every check of a cluster file beyond its shape: `check_cluster` refuses what cannot work.

What single values may be is in `rules`, `addresses` and `backends`; here is which keys they
are asked of, and what only several keys together can get wrong.
"""

import re
from collections.abc import Iterable

from mpkv.cluster import rules
from mpkv.cluster.addresses import is_loopback, is_unspecified, wrong_host, wrong_listen
from mpkv.cluster.backends import wrong_backends
from mpkv.cluster.config_shape import section_label
from mpkv.cluster.sections import ClusterFile, Node, TierSection
from mpkv.cluster.settings import Integrity
from mpkv.cluster.sizes import parse_size
from mpkv.cluster.words import refuse, shown
from mpkv.errors import ConfigRefused

HASH_ALGORITHMS = ("sha256_cbor", "xxhash_cbor")


def check_cluster(path: str, file: ClusterFile) -> None:
    """Raises ConfigRefused with the first thing that is wrong."""
    _check_hashing(path, file)
    _check_tier(path, file.tier)
    _refuse_any(
        path,
        [
            ("[cluster] content", rules.wrong_content(file.cluster.content)),
            ("[vllm] model", rules.wrong_model(file.vllm.model)),
            ("[vllm] revision", rules.wrong_revision(file.vllm.revision)),
            ("[vllm] args", rules.wrong_arguments(file.vllm.args)),
            ("[vllm] env", rules.wrong_environment(file.vllm.env)),
            ("[pull] deadline_s", rules.wrong_deadline(file.pull.deadline_s)),
            ("[pull] head_start", rules.wrong_head_start(file.pull.head_start)),
            ("[pull] integrity", _wrong_integrity(file.pull.integrity)),
            ("[nixl] backends", wrong_backends(file.nixl.backends)),
            ("[nixl] lanes", rules.wrong_lanes(file.nixl.lanes)),
        ],
    )
    if not file.node:
        refuse(path, "[[node]]", "expected at least one node, found none; add a [[node]]")
    for node in file.node:
        _check_node(path, node)
        _check_addresses(path, node, file.cluster.allow_insecure)
    _check_reach(path, file.node)
    _check_names(path, file.node)
    _check_ports(path, file.node)


def _refuse_any(path: str, complaints: Iterable[tuple[str, str | None]]) -> None:
    for key, complaint in complaints:
        if complaint:
            refuse(path, key, complaint)


def _label(node: Node) -> str:
    return section_label("node", node.name, 0)


def _check_hashing(path: str, file: ClusterFile) -> None:
    seed = file.cluster.hash_seed
    if not (re.fullmatch(r"[0-9]{1,10}", seed) and int(seed) < 1 << 32):
        refuse(
            path,
            "[cluster] hash_seed",
            f'expected a whole number below 2^32 in quotes, found "{shown(seed)}"; '
            'write the same for all nodes, for example "0"',
        )
    if file.cluster.hash_algorithm not in HASH_ALGORITHMS:
        refuse(
            path,
            "[cluster] hash_algorithm",
            f"expected one of {', '.join(HASH_ALGORITHMS)}, found "
            f'"{shown(file.cluster.hash_algorithm)}"; others hash differently in each process',
        )


def _check_tier(path: str, tier: TierSection) -> None:
    for key, size in {"size": tier.size, "sync_load_budget": tier.sync_load_budget}.items():
        try:
            if size or key == "size":
                parse_size(size)
        except ConfigRefused as refused:
            # A budget that nobody wants is left out; a size never is.
            remedy = "" if key == "size" else "; leave it out for none"
            refuse(path, f"[tier] {key}", f"{refused}{remedy}")
    if tier.huge_pages not in ("auto", "off"):
        refuse(
            path,
            "[tier] huge_pages",
            f'expected "auto" or "off", found "{shown(tier.huge_pages)}"; leave it out for "auto"',
        )


def _wrong_integrity(integrity: str) -> str | None:
    if integrity in list(Integrity):
        return None
    return (
        f'expected "off", "sampled" or "full", found "{shown(integrity)}"; '
        'write "full" to check every block'
    )


def _check_node(path: str, node: Node) -> None:
    label = _label(node)
    _refuse_any(
        path,
        [
            (f"{label} name", rules.wrong_name(node.name)),
            (f"{label} data_parallel_size", rules.wrong_ranks(node.data_parallel_size)),
            (f"{label} port", rules.wrong_port(node.port, node.data_parallel_size)),
            (f"{label} http_port", rules.wrong_http_port(node.http_port)),
            (f"{label} vllm_args", rules.wrong_arguments(node.vllm_args)),
            (f"{label} vllm_env", rules.wrong_environment(node.vllm_env)),
        ],
    )


def _check_addresses(path: str, node: Node, allow_insecure: bool) -> None:
    label = _label(node)
    if is_unspecified(node.listen) and not node.advertise:
        refuse(
            path,
            f"{label} listen",
            f"{node.listen} is every address of the node, and peers need one to connect to; "
            'set "advertise" to the address by which they reach this node',
        )
    if complaint := wrong_listen(node.listen):
        refuse(path, f"{label} listen", complaint)
    if node.advertise and (complaint := wrong_host(node.advertise)):
        refuse(path, f"{label} advertise", complaint)
    if not is_loopback(node.listen) and not allow_insecure:
        refuse(
            path,
            f"{label} listen",
            f"{node.listen} is reachable from other hosts and the control port is not "
            "authenticated; set allow_insecure = true in [cluster] if that network is "
            'trusted, or listen = "127.0.0.1"',
        )


def _check_reach(path: str, nodes: tuple[Node, ...]) -> None:
    """Nodes on other hosts cannot be mixed with nodes that only this host can reach."""
    here = [node for node in nodes if is_loopback(node.reached_at)]
    if here and len(here) < len(nodes):
        refuse(
            path,
            f"{_label(here[0])} listen",
            f"{here[0].reached_at} is reachable on its own host only, and other nodes are on "
            'other hosts; set "listen" to an address of the node, or "advertise"',
        )


def _check_names(path: str, nodes: tuple[Node, ...]) -> None:
    names: set[str] = set()
    for node in nodes:
        if node.name in names:
            refuse(
                path,
                f"{_label(node)} name",
                f'two nodes are named "{node.name}"; give each its own name',
            )
        names.add(node.name)


def _check_ports(path: str, nodes: tuple[Node, ...]) -> None:
    """Nodes that are reached at one address share that host's ports."""
    claims: dict[str, list[tuple[range, str, Node]]] = {}
    for node in nodes:
        at = claims.setdefault(node.reached_at, [])
        at.append((node.ports, "port", node))
        if node.http_port:
            at.append((range(node.http_port, node.http_port + 1), "http_port", node))
    for address, ranges in claims.items():
        ranges.sort(key=lambda claim: claim[0].start)
        taken, taken_key, holder = ranges[0]
        for ports, key, node in ranges[1:]:
            if ports.start < taken.stop:
                refuse(
                    path,
                    f"{_label(node)} {key}",
                    f"{address}:{ports.start} is already the {taken_key} of {_label(holder)}; "
                    "choose another port",
                )
            taken, taken_key, holder = ports, key, node
