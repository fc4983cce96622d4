"""The sections of a cluster file and their defaults."""

import msgspec

from mpkv.cluster.sizes import parse_size


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class ClusterSection(_Section, frozen=True):
    """What all nodes agree on. `hash_seed` becomes every node's PYTHONHASHSEED; `content`
    names what they serve, beside what they find out about the weights by themselves."""

    allow_insecure: bool = False
    hash_seed: str = "0"
    hash_algorithm: str = "sha256_cbor"
    content: str = ""


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


class ClusterFile(_Section, frozen=True):
    vllm: VllmSection
    tier: TierSection
    node: tuple[Node, ...]
    cluster: ClusterSection = ClusterSection()
    pull: PullSection = PullSection()
    nixl: NixlSection = NixlSection()
