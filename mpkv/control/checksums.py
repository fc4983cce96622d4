"""Which blocks of a pull are checked, by which checksum, and who waits for them.

The checksum is xxh3_64 of the library xxhash: hashing blocks of 256 KiB it does 8 GB/s on a
core that copies 11 GB/s (CRC32C by google-crc32c 4, zlib's CRC32 2), and from its version 4.0
on it gives up the GIL for blocks above 64 KiB, so that the control plane's loop goes on
meanwhile. It finds what breaks by itself; somebody who forges blocks can forge their
checksums too.
"""

import queue
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import xxhash

from mpkv.cluster.settings import Integrity
from mpkv.messages import KeyGroup

CHECKSUM = 8
# Of sampled pulls. Both sides choose by key, so no list of them travels.
ONE_IN = 16

checksum = xxhash.xxh3_64_intdigest


@dataclass(slots=True, eq=False)
class Job:
    """Checksums that a pull waits for, of some of the blocks at `slots`.

    `keys` are those of all the slots, in the same order; only a sample needs them. `landed`:
    a READ has just filled the slots, so they are not READY. When it is over the job is put
    into `over`; `checksums` are None then if they could not be made.
    """

    integrity: Integrity
    slots: bytes
    keys: bytes
    landed: bool
    over: "queue.SimpleQueue[Job]"
    positions: Sequence[int] = ()
    checksums: bytes | None = None
    # Nobody waits any more.
    dropped: bool = False


class Checksums(Protocol):
    """Makes checksums without ever making the caller wait."""

    def submit(self, job: Job) -> None: ...


def is_sampled(key: bytes) -> bool:
    return xxhash.xxh3_64_intdigest(key) % ONE_IN == 0


def chosen(integrity: Integrity, keys: bytes, count: int) -> Sequence[int]:
    """The positions of those to check among `count` blocks; one at least."""
    if integrity is Integrity.FULL:
        return range(count)
    size = len(keys) // count
    sample = [at for at in range(count) if is_sampled(keys[at * size : (at + 1) * size])]
    return sample or [0]


def keys_at(groups: tuple[KeyGroup, ...], indexes: bytes, key_size: int) -> bytes:
    """The keys at `indexes`, packed, which count through all groups."""
    keys = b"".join(group.keys for group in groups)
    ends = [(at * key_size, (at + 1) * key_size) for at in memoryview(indexes).cast("I")]
    return b"".join([keys[start:end] for start, end in ends])
