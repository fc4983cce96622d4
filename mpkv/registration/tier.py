"""The tier as a registration process sees it: one shared mapping of the data segment."""

import mmap
import os

from mpkv.errors import SegmentRefused
from mpkv.messages import Tier


def map_tier(tier: Tier) -> mmap.mmap:
    """Map the tier's rows shared and read-write; nothing is copied or touched."""
    length = tier.blocks * tier.block_bytes
    size = os.fstat(tier.fd).st_size
    if length <= 0 or size < length:
        raise SegmentRefused(
            f"the data segment has {size} bytes, but {tier.blocks} blocks of "
            f"{tier.block_bytes} bytes need {length}; restart the engine"
        )
    return mmap.mmap(tier.fd, length, mmap.MAP_SHARED)
