"""Which peer a request names as the source of its KV cache."""

import logging
import re
from collections.abc import Sequence
from typing import Any

from mpkv.cluster.settings import PeerAddress

log = logging.getLogger("mpkv.engine")

LONGEST_HOST = 253


def parse_source(params: dict[str, Any] | None) -> str | None:
    """Return `host:port` from `kv_transfer_params.remote_kv_source`, None if not asked.

    The field is vLLM's own: `{kv_request_id, remote_host, remote_port}`; mpkv has no use
    for `kv_request_id`. What comes with a request is untrusted: anything malformed is
    no source, and said in the log.
    """
    source = find_source(params)
    if source is None and params and "remote_kv_source" in params:
        log.warning(
            "kv_transfer_params.remote_kv_source needs remote_host (a name or address) "
            "and remote_port (1-65535), found %.200r; the request computes locally",
            params["remote_kv_source"],
        )
    return source


def find_source(params: dict[str, Any] | None) -> str | None:
    """As `parse_source`, but silent."""
    named = params.get("remote_kv_source") if params else None
    host = named.get("remote_host") if isinstance(named, dict) else None
    port = named.get("remote_port") if isinstance(named, dict) else None
    if isinstance(port, str) and re.fullmatch("[0-9]{1,5}", port):
        port = int(port)
    if (
        not isinstance(host, str)
        or not 0 < len(host) <= LONGEST_HOST
        or not all(c.isascii() and (c.isalnum() or c in ".-_:[]") for c in host)
        or type(port) is not int
        or not 0 < port < 65536
    ):
        return None
    return f"{host}:{port}"


def addresses(peers: Sequence[PeerAddress]) -> frozenset[str]:
    """`host:port` of every rank of `peers`."""
    return frozenset(address for peer in peers for address in _ranks(peer))


def sources(
    nodes: Sequence[PeerAddress], itself: str = ""
) -> dict[str, tuple[str, tuple[str, ...]]]:
    """For each address (`host:port`) of a rank of `nodes`, which requests may name: whom to ask,
    and who else of that node may be asked. That is never `itself`, unless nobody else is there.
    """
    found = {}
    for node in nodes:
        ranks = _ranks(node)
        others = [rank for rank in ranks if rank != itself]
        for rank in ranks:
            first = rank if rank in others or not others else others[0]
            found[rank] = (first, tuple(other for other in others if other != first))
    return found


def _ranks(node: PeerAddress) -> list[str]:
    return [f"{node.host}:{node.port + rank}" for rank in range(node.ranks)]
