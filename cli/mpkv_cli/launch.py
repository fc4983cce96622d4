"""`mpkv launch`: this process becomes the vLLM server of a node."""

import os
import sys

from mpkv.cluster.config import Cluster
from mpkv.cluster.sections import Node
from mpkv.errors import ConfigRefused
from mpkv.processes.orphans import remove_orphans
from mpkv_cli.checks import check_node
from mpkv_cli.leftovers import remove_stale_regions
from mpkv_cli.serve import serve_command


def launch_node(
    cluster: Cluster, node: Node, extra_args: tuple[str, ...], trace_dir: str = ""
) -> None:
    """Raises ConfigRefused if the node cannot run here; otherwise does not return."""
    command = serve_command(cluster, node, extra_args, trace_dir)
    remove_stale_regions()
    remove_orphans()
    check_node(cluster, node, extra_args)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(command.argv[0], command.argv, command.environment())
    except OSError as error:
        raise ConfigRefused(
            f'{cluster.path}: [[node]] "{node.name}": its command cannot be started '
            f"({error.strerror}); shorten args and env, or the list of nodes."
        ) from None
