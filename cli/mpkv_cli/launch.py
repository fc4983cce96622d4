"""`mpkv launch`: this process becomes the vLLM server of a node."""

import os
import sys

from mpkv.cluster.config import Cluster, Node
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
    os.execve(command.argv[0], command.argv, command.environment())
