"""The engine's mapping of the data segment, which vLLM's workers create."""

import mmap
import os

from mpkv.errors import SegmentRefused

# What a worker leaves at the tier's start, at its rank's place, until blocks are written there.
MARK = b"\x8dmpkv\x01\x00\x00"
DIGEST_BYTES = 32
PLACE_BYTES = len(MARK) + DIGEST_BYTES


def region_path(engine_id: str) -> str:
    """Where vLLM's `SharedOffloadRegion` of this engine has its name."""
    return f"/dev/shm/vllm_offload_{engine_id}.mmap"


def leave_digest(fd: int, rank: int, digest: bytes) -> None:
    """Leave what worker `rank` computes with for the engine, which has no step to ask it in
    before its first request."""
    if digest:
        os.pwrite(fd, MARK + digest, rank * PLACE_BYTES)


class DataRegion:
    """The tier's bytes, held open by descriptor so that helpers can map them too."""

    def __init__(self, engine_id: str, blocks: int, block_bytes: int) -> None:
        """Open the segment and remove its name.

        Every worker has mapped it by the time the scheduler exists, so the name has
        no further use, and what has no name cannot be left behind. Raises
        SegmentRefused when it is missing or has another size.
        """
        path = region_path(engine_id)
        size = blocks * block_bytes
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise SegmentRefused(
                f"{path}: the workers should have created the CPU tier here, but it cannot "
                f"be opened ({error.strerror}). Workers and scheduler of an engine must run "
                "on one host; mpkv does not support engines that span hosts."
            ) from None
        os.unlink(path)
        found = os.fstat(self.fd).st_size
        if found != size:
            os.close(self.fd)
            raise SegmentRefused(
                f"{path}: expected {size} bytes ({blocks} blocks of {block_bytes}), found "
                f"{found}. Workers and scheduler disagree about the KV cache; start again."
            )
        self.blocks = blocks
        self.block_bytes = block_bytes

    def digests(self, workers: int) -> list[bytes]:
        """What the workers have left, in order of rank; fewer if some have left nothing."""
        places = [os.pread(self.fd, PLACE_BYTES, r * PLACE_BYTES) for r in range(workers)]
        return [place[len(MARK) :] for place in places if place.startswith(MARK)]

    def map(self) -> mmap.mmap:
        return mmap.mmap(self.fd, self.blocks * self.block_bytes, mmap.MAP_SHARED)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
