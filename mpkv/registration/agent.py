"""One NIXL agent: the only file that calls NIXL's bindings.

After the start, failures are whatever NIXL raises (its exceptions share no base of their own).
Calls that can take long release the GIL, but one lock inside the agent serialises them
all: a READ that the transport copies inside `post`, as UCX does between processes of one
host, makes every other call wait for it.
"""

import ctypes
import logging
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpkv.errors import HelperFailed
from mpkv.registration.bindings import load_bindings

log = logging.getLogger("mpkv.registration")

# The progress thread sleeps in poll() on UCX's event descriptor. The delay bounds that
# sleep for events which UCX fails to signal; 0 would make the thread spin a whole core.
_PROGRESS_DELAY_US = 20_000

# rc_gda lanes serve GPU-initiated transfers, and a failure on one can poison the whole peer.
_BACKEND_PARAMETERS = {"UCX": {"engine_config": "TLS=^rc_gda"}}


class Agent:
    """A NIXL agent named `name` with `backends`, in NIXL's order of preference.

    With `progress_thread` a thread of NIXL's answers peers; without, the owner has to
    poll its READs, or call `progress` now and then.
    """

    def __init__(self, name: str, backends: Sequence[str], *, progress_thread: bool) -> None:
        nixl = self._nixl = load_bindings()
        config = nixl.nixlAgentConfig()
        config.useProgThread = progress_thread
        config.pthrDelay = _PROGRESS_DELAY_US
        config.useListenThread = False
        config.captureTelemetry = False
        config.syncMode = nixl.NIXL_THREAD_SYNC_STRICT
        self.name = name
        # An exported buffer keeps its mapping from being closed.
        self._registered: list[ctypes.c_char] = []
        self._agent = nixl.nixlAgent(name, config)
        for backend in backends:
            try:
                self._agent.createBackend(backend, _BACKEND_PARAMETERS.get(backend, {}))
            except Exception as error:
                raise HelperFailed(
                    f"NIXL has no working backend {backend!r} here ({describe(error)}); expected "
                    f"one of {self._agent.getAvailPlugins()}, see the setting `backends`"
                ) from error

    # --- own memory ----------------------------------------------------------------------

    def register(self, mapping: mmap.mmap) -> int:
        """Register memory for READs into it and from it; returns its address.

        The memory stays registered, and mapped, as long as the agent lives. Raises
        HelperFailed.
        """
        exported = ctypes.c_char.from_buffer(mapping)
        address = ctypes.addressof(exported)
        rows = _rows((address, len(mapping), 0))
        try:
            self._agent.registerMem(self._nixl.nixlRegDList(self._nixl.DRAM_SEG, rows), [])
        except Exception as error:
            raise HelperFailed(
                f"NIXL could not register {len(mapping)} bytes ({describe(error)}); RDMA needs "
                "them locked in memory, see `ulimit -l`"
            ) from error
        self._registered.append(exported)
        return address

    def metadata(self) -> bytes:
        """What a peer's initiator needs to reach the registered memory."""
        return bytes(self._agent.getLocalMD())

    def prepare_local(self, base: int, block_bytes: int, blocks: int) -> int:
        """Describe `blocks` consecutive blocks of registered own memory, by a handle."""
        return self._prepare(self._nixl.NIXL_INIT_AGENT, base, block_bytes, blocks)

    # --- peers -----------------------------------------------------------------------------

    def is_metadata_of(self, peer: str, metadata: bytes) -> bool:
        """Whether `metadata` names `peer`: but for the name and its length of 8 bytes it has
        to begin as our own does. Only loading tells whether the rest is good."""
        own, name = self.metadata(), self.name.encode()
        begin = own[: own.index(name) - 8]
        return metadata.startswith(begin + len(peer).to_bytes(8, "little") + peer.encode())

    def add_peer(self, metadata: bytes) -> str:
        """Load a peer's metadata and return its agent's name. Loading it again is harmless,
        but makes handles of `prepare_remote` useless."""
        return bytes(self._agent.loadRemoteMD(metadata)).decode()

    def connect(self, peer: str) -> None:
        self._agent.makeConnection(peer, [])

    def prepare_remote(self, peer: str, base: int, block_bytes: int, blocks: int) -> int:
        """Describe `blocks` consecutive blocks of the peer's memory, by a handle."""
        return self._prepare(peer, base, block_bytes, blocks)

    def remove_peer(self, peer: str) -> None:
        """Forget a peer's agent. NIXL has dropped it already if its connection was lost."""
        try:
            self._agent.invalidateRemoteMD(peer)
        except self._nixl.nixlNotFoundError:
            log.debug("NIXL had dropped agent %s by itself", peer)

    def release_blocks(self, handle: int) -> None:
        """Forget what `prepare_local` or `prepare_remote` described."""
        self._agent.releasedDlistH(handle)

    # --- READs -----------------------------------------------------------------------------

    def make_read(
        self,
        local_blocks: int,
        local: NDArray[np.int32],
        remote_blocks: int,
        remote: NDArray[np.int32],
    ) -> int:
        """A READ of the remote blocks at indexes `remote` into the local ones at `local`,
        not posted yet."""
        return int(
            self._agent.makeXferReq(
                self._nixl.NIXL_READ, local_blocks, local, remote_blocks, remote, "", [], False
            )
        )

    def make_small_read(self, peer: str, local: int, remote: int, length: int) -> int:
        """A READ of `length` bytes between two addresses, not posted yet."""
        sides = [
            self._nixl.nixlXferDList(self._nixl.DRAM_SEG, _rows((address, length, 0)))
            for address in (local, remote)
        ]
        return int(self._agent.createXferReq(self._nixl.NIXL_READ, *sides, peer, "", []))

    def post(self, read: int) -> bool:
        """Start a READ; True when it is done already. After an exception parts of it may
        still be running."""
        return self._is_done(self._agent.postXferReq(read))

    def poll(self, read: int) -> bool:
        """True once every byte of a posted READ has landed. Only that ends a READ: after an
        exception parts of it may still be running."""
        return self._is_done(self._agent.getXferStatus(read))

    def release(self, read: int) -> None:
        """Forget a READ. It does not stop one that is running, and NIXL may keep that one."""
        try:
            self._agent.releaseXferReq(read)
        except Exception as error:
            log.debug("NIXL keeps a READ: %s", describe(error))

    def progress(self) -> None:
        """Let the transports do their housekeeping, which an idle owner has to ask for."""
        self._agent.getNotifs({}, [])

    def _prepare(self, peer: str, base: int, block_bytes: int, blocks: int) -> int:
        row = _rows((base, block_bytes, 0, block_bytes, blocks))
        return int(self._agent.prepXferDlist(peer, self._nixl.DRAM_SEG, row, []))

    def _is_done(self, status: Any) -> bool:
        if status == self._nixl.NIXL_SUCCESS:
            return True
        if status == self._nixl.NIXL_IN_PROG:
            return False
        raise RuntimeError(f"NIXL reported {status.name}")


def describe(error: Exception) -> str:
    """NIXL's exceptions often say little beyond their type."""
    return f"{type(error).__name__}: {error}"


def _rows(*rows: tuple[int, ...]) -> NDArray[np.uint64]:
    return np.array(rows, dtype=np.uint64)
