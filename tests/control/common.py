"""What all tests of the control plane share."""

import array
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mpkv.messages import Compatibility

ROOT = Path(__file__).resolve().parents[2]
KEY_SIZE = 36
BLOCK_BYTES = 4096
CONTENT = b"weights of tests"
LIMIT_S = 20.0

COMPATIBILITY = Compatibility(
    model="m",
    content="",
    revision="r",
    dtype="bfloat16",
    cache_dtype="auto",
    kv_layout="LBHNC",
    tokens_per_block=(16,),
    blocks_per_chunk=1,
    block_bytes=BLOCK_BYTES,
    tensor_parallel=1,
    pipeline_parallel=1,
    prefill_context_parallel=1,
    decode_context_parallel=1,
    hash_algorithm="sha256_cbor",
    hash_seed="0",
    key_size=KEY_SIZE,
)

T = TypeVar("T")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def keys(name: str, count: int, group: int = 0) -> list[bytes]:
    return [f"{name}/{i}".encode().ljust(32, b".") + group.to_bytes(4, "big") for i in range(count)]


def u32(packed: bytes) -> list[int]:
    return list(array.array("I", packed))


def wait_for(what: Callable[[], T], why: str, limit_s: float = LIMIT_S) -> T:
    """Call `what` until it returns something true."""
    until = time.monotonic() + limit_s
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < until, f"waited {limit_s:g} s for {why}"
        time.sleep(0.002)
