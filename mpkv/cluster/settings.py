"""What one engine must know of its cluster.

`mpkv launch` and `mpkv render` write it, as plain JSON, into vLLM's
`kv_connector_extra_config["mpkv"]`; the engine reads it back. It is the only way
by which configuration reaches the engine and, through it, the helpers.
"""

import enum
from collections.abc import Iterator
from typing import Any, Literal, NoReturn

import msgspec

from mpkv.cluster import rules
from mpkv.cluster.addresses import is_loopback, wrong_host, wrong_listen
from mpkv.cluster.backends import wrong_backends
from mpkv.cluster.words import shown
from mpkv.errors import ConfigRefused


class Integrity(enum.StrEnum):
    """Which blocks of a pull are checked against the source's checksums after the READ."""

    OFF = "off"
    SAMPLED = "sampled"
    FULL = "full"


class PeerAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the control planes of one other node are reached.

    Data-parallel rank `r` of the node listens on `port + r`.
    """

    name: str
    host: str
    port: int
    ranks: int = 1


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one node; every data-parallel rank of it gets the same.

    `listen` is the address the control plane binds, `port` its base port (rank `r` of
    `ranks` uses `port + r`). `advertise` is the address by which peers reach this node.
    `peers` are connected and warmed in the background. `deadline_s` bounds each pull
    from its start, in seconds; `head_start` is the share of the tier kept ready for pulls
    that begin before the scheduler has heard of their request. `backends` are NIXL backend
    names, `lanes` how many of its agents share a large READ. Engines of different `revision`
    or `content` never share. `huge_pages` "auto" lays them under the tier where /dev/shm
    gives them. `integrity` is what this engine checks of what it pulls, and what it keeps
    checksums of for those that pull from it.
    `trace_dir`, when set, receives one JSON-lines file of time-stamped events per
    process.
    """

    node: str
    listen: str = "127.0.0.1"
    port: int = 7710
    ranks: int = 1
    advertise: str = "127.0.0.1"
    allow_insecure: bool = False
    peers: tuple[PeerAddress, ...] = ()
    deadline_s: float = 10.0
    head_start: float = 0.0
    backends: tuple[str, ...] = ("UCX",)
    lanes: int = 2
    revision: str = ""
    content: str = ""
    huge_pages: Literal["auto", "off"] = "auto"
    integrity: Integrity = Integrity.OFF
    trace_dir: str = ""


def decode_settings(raw: Any) -> EngineSettings:
    """Check `kv_connector_extra_config["mpkv"]` and turn it into `EngineSettings`.

    Raises ConfigRefused naming the key that is wrong.
    """
    try:
        settings = msgspec.convert(raw, EngineSettings, strict=True)
    except msgspec.ValidationError as error:
        _refuse(f": {shown(str(error))}")
    except RecursionError:
        _refuse(": nested too deep")
    for key, complaint in (*_complaints(settings), *_peer_complaints(settings.peers)):
        if complaint:
            _refuse(f".{key}: {complaint}")
    return settings


def _refuse(complaint: str) -> NoReturn:
    raise ConfigRefused(
        f'kv_connector_extra_config["mpkv"]{complaint}. '
        "Expected the object that `mpkv render CONFIG --node NAME` prints; "
        "print it again and use it unchanged."
    ) from None


def _complaints(settings: EngineSettings) -> Iterator[tuple[str, str | None]]:
    yield "node", rules.wrong_name(settings.node)
    yield "listen", wrong_listen(settings.listen)
    yield "ranks", rules.wrong_ranks(settings.ranks)
    yield "port", rules.wrong_port(settings.port, settings.ranks)
    yield "advertise", wrong_host(settings.advertise)
    yield "deadline_s", rules.wrong_deadline(settings.deadline_s)
    yield "head_start", rules.wrong_head_start(settings.head_start)
    yield "backends", wrong_backends(settings.backends)
    yield "lanes", rules.wrong_lanes(settings.lanes)
    yield "revision", rules.wrong_revision(settings.revision)
    yield "content", rules.wrong_content(settings.content)
    yield "trace_dir", rules.wrong_arguments((settings.trace_dir,))


def _peer_complaints(peers: tuple[PeerAddress, ...]) -> Iterator[tuple[str, str | None]]:
    for index, peer in enumerate(peers):
        place = f"peers[{index}]"
        yield f"{place}.name", rules.wrong_name(peer.name)
        yield f"{place}.host", wrong_host(peer.host)
        yield f"{place}.ranks", rules.wrong_ranks(peer.ranks)
        yield f"{place}.port", rules.wrong_port(peer.port, peer.ranks)


def check_exposure(settings: EngineSettings) -> None:
    """Refuse to listen beyond this machine unless that was asked for by name.

    Whoever reaches the control plane can read, and through NIXL's keys write, the tier.
    Raises ConfigRefused.
    """
    if not settings.allow_insecure and not is_loopback(settings.listen):
        raise ConfigRefused(
            f'kv_connector_extra_config["mpkv"].listen: {settings.listen} is reachable from '
            "other machines, and the control plane has no authentication. Set "
            "allow_insecure = true if everyone on that network may read this engine's KV "
            "cache, or listen on 127.0.0.1."
        )
