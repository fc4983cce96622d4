"""Which blocks a tier keeps: a trace of requests over the real ledger, beside other policies."""

import struct
from collections.abc import Sequence
from pathlib import Path

from mpkv.memory import FILLING, MISS_SLOT, Ledger
from mpkv_cli.bench.progress import Progress
from mpkv_cli.bench.result import Chart, Result, Series, Table
from mpkv_cli.bench.tier_models import MODELS, asked
from mpkv_cli.bench.tier_trace import Request, generate_trace, load_trace

KEY_SIZE = 36
# What a step of vLLM computes: 8,192 tokens in blocks of 512.
BLOCKS_A_STEP = 16
OURS = "mpkv"


def measure(trace: Path | None, blocks: Sequence[int], requests: int, progress: Progress) -> Result:
    """Replay `trace`, or `requests` made ones, in tiers of these sizes."""
    progress.say("reading the trace" if trace else "making a trace")
    replayed = load_trace(trace) if trace else generate_trace(requests)
    shares: dict[str, list[float]] = {name: [] for name in (OURS, *MODELS)}
    for size in blocks:
        progress.say(f"{size:,} blocks")
        shares[OURS].append(replay(replayed, size))
        for name, model in MODELS.items():
            progress.step(len(shares[name]), len(blocks), f"{size:,} blocks, {name}")
            shares[name].append(model(replayed, size))
    return _result(trace, replayed, blocks, shares)


def replay(requests: Sequence[Request], blocks: int) -> float:
    """The share of blocks that a ledger hits when it is used as the manager uses it."""
    ledger = Ledger.create(blocks, KEY_SIZE)
    try:
        hits = sum(_request(ledger, request, number) for number, request in enumerate(requests, 1))
    finally:
        ledger.close()
    return hits / asked(requests)


def _request(ledger: Ledger, request: Request, owner: int) -> int:
    """Load what is there, store the rest step by step; how many blocks were there."""
    keys = [_key(block) for block in request]
    hits = ledger.lookup_prefix(b"".join(keys))
    ledger.unpin_many(ledger.pin_many(b"".join(keys[:hits])))
    for first in range(hits, len(keys), BLOCKS_A_STEP):
        offered = keys[first : first + BLOCKS_A_STEP]
        present = ledger.pin_many(b"".join(offered))
        slots = struct.unpack(f"={len(offered)}Q", present)
        missing = [key for key, slot in zip(offered, slots, strict=True) if slot == MISS_SLOT]
        allocated = ledger.allocate(len(missing), FILLING, owner) if missing else None
        ledger.unpin_many(present)
        if allocated is not None:
            ledger.publish(allocated[0], b"".join(missing), False)
    return hits


def _key(block: int) -> bytes:
    return block.to_bytes(8, "big", signed=True) * 4 + bytes(KEY_SIZE - 32)


def _result(
    trace: Path | None,
    requests: Sequence[Request],
    blocks: Sequence[int],
    shares: dict[str, list[float]],
) -> Result:
    figures = {f"hit_share_{size}": share for size, share in zip(blocks, shares[OURS], strict=True)}
    for name in MODELS:
        figures |= {
            f"{name.lower().replace('-', '_')}_hit_share_{size}": share
            for size, share in zip(blocks, shares[name], strict=True)
        }
    rows = tuple(
        (f"{size:,}", *(f"{shares[name][n]:.4f}" for name in shares))
        for n, size in enumerate(blocks)
    )
    distinct = len({block for request in requests for block in request})
    sizes = tuple(float(size) for size in blocks)
    return Result(
        benchmark="tier",
        transport="none",
        parameters={"trace": trace.name if trace else "made", "requests": len(requests)},
        figures=figures,
        tables=(Table("Leading blocks hit, of those asked for", ("blocks", *shares), rows),),
        chart=Chart(
            "Which blocks a tier keeps",
            "blocks in the tier",
            "share of blocks hit",
            tuple(Series(name, sizes, tuple(found)) for name, found in shares.items()),
            log="x",
        ),
        notes=(
            f"{len(requests):,} requests ask for {asked(requests):,} blocks, {distinct:,} of them "
            "different. Belady knows the future; the others are simple models.",
        ),
    )
