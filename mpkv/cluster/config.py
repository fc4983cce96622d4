"""Cluster files: one TOML file names every node, its addresses and how vLLM is started.

Whatever is wrong with a file ends in one `ConfigRefused` of one line, which names the
file, the key, what was expected and found, and the remedy.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from mpkv.cluster.checks import check_cluster
from mpkv.cluster.config_shape import decode
from mpkv.cluster.config_text import read_toml
from mpkv.cluster.sections import (
    ClusterFile,
    ClusterSection,
    NixlSection,
    Node,
    PullSection,
    TierSection,
    VllmSection,
)
from mpkv.cluster.settings import EngineSettings, Integrity, PeerAddress
from mpkv.cluster.words import listed, refuse, shown
from mpkv.errors import ConfigRefused


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
        known = listed([node.name for node in self.nodes])
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
            f'{self.path}: no [[node]] is named "{shown(name)}"; the file has {known}. '
            "Choose one of them with --node, or add the node to the file."
        )

    def model(self) -> str:
        """The model as vLLM shall get it: a path is absolute, a hub name unchanged. Raises
        ConfigRefused where it cannot be looked up."""
        written = self.vllm.model
        try:
            beside_file = Path(self.path).parent / Path(written).expanduser()
            if names_a_path(written) or beside_file.exists():
                return str(beside_file.resolve())
        except (OSError, RuntimeError) as error:
            # An unknown ~user, names longer than a file system takes, links in a circle.
            reason = error.strerror if isinstance(error, OSError) else str(error)
            refuse(
                self.path,
                "[vllm] model",
                f'expected a hub name or a path, found "{shown(written)}", which cannot be '
                f"looked up ({shown(str(reason)).rstrip('.')}); correct it",
            )
        return written

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
            content=self.cluster.content,
            huge_pages=cast(Literal["auto", "off"], self.tier.huge_pages),
            integrity=Integrity(self.pull.integrity),
            trace_dir=trace_dir,
        )


def names_a_path(model: str) -> bool:
    """Whether a model is plainly meant as a path and not as a hub name."""
    return model.startswith(("/", "./", "../", "~"))


def load_cluster(path: str) -> Cluster:
    """Read and check a cluster file. Raises ConfigRefused."""
    file = decode(path, read_toml(path), ClusterFile)
    check_cluster(path, file)
    return Cluster(path, file.cluster, file.vllm, file.tier, file.pull, file.nixl, nodes=file.node)
