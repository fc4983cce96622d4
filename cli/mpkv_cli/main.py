"""The commands and their options; what they do is in the modules they call."""

import logging
import os
from pathlib import Path
from typing import Any

import click

import mpkv
from mpkv.cluster.config import load_cluster
from mpkv.errors import MpkvError
from mpkv_cli.bench.commands import bench


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except MpkvError as error:
            raise click.ClickException(str(error)) from None


_config = click.argument("config", metavar="CONFIG")
_node = click.option("--node", metavar="NAME", help="Which [[node]] of CONFIG; default: the only.")
_trace_dir = click.option(
    "--trace-dir",
    metavar="DIR",
    default="",
    help="Write time-stamped events of every process into DIR.",
)
_vllm_args = click.argument("vllm_args", nargs=-1, type=click.UNPROCESSED)


@click.group(cls=_Commands)
@click.version_option(mpkv.__version__, prog_name="mpkv")
def main() -> None:
    """Let vLLM replicas reuse each other's KV cache."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


@main.command()
@_config
@_node
@_trace_dir
@_vllm_args
def launch(config: str, node: str | None, trace_dir: str, vllm_args: tuple[str, ...]) -> None:
    """Check this machine, then become the vLLM server of one node.

    VLLM_ARGS after `--` go to `vllm serve` unchanged.
    """
    from mpkv_cli.launch import launch_node

    cluster = load_cluster(config)
    launch_node(cluster, cluster.node(node), vllm_args, trace_dir)


@main.command()
@_config
@_node
@_trace_dir
@_vllm_args
def render(config: str, node: str | None, trace_dir: str, vllm_args: tuple[str, ...]) -> None:
    """Print the command that `launch` would run, quoted for a shell."""
    from mpkv_cli.render import render_command
    from mpkv_cli.serve import serve_command

    cluster = load_cluster(config)
    command = serve_command(cluster, cluster.node(node), vllm_args, trace_dir)
    # As bytes: names of files and arguments may be no UTF-8.
    click.echo(os.fsencode(render_command(command)))


@main.command()
@_config
@click.option(
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=Path("build"),
    show_default=True,
    help="Where logs and demo.json go.",
)
def demo(config: str, output: Path) -> None:
    """Start the two nodes of CONFIG here and show what sharing saves."""
    from mpkv_cli.demo.run import run_demo

    run_demo(config, output)


main.add_command(bench)


@main.command(hidden=True)
@click.argument("directory", type=click.Path(path_type=Path))
def tiny_model(directory: Path) -> None:
    """Make the small Llama of the demo and the tests in DIRECTORY."""
    from mpkv_cli.tiny_model import make_tiny_model

    make_tiny_model(directory)


if __name__ == "__main__":
    main()
