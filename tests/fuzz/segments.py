"""Rings and ledgers with anything written over them, in a process that must not crash.

What lies beyond a segment's mapping is not watched: a stray access is seen when it hits
nothing mapped, or when it changes what a call returns.
"""

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mpkv.errors import MpkvError
from mpkv.memory import FILLING, LANDING, Ledger, Ring
from mpkv.memory._native import LAYOUT

HANGS_AFTER_S = 30.0
# What a call may answer memory with that makes no sense.
REFUSALS = (MpkvError, ValueError, OverflowError, RuntimeError)
EDGES = [0, 1, 7, 8, 4095, 4096, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 8, (1 << 64) - 1]


def run(seconds: float, seed: int) -> int:
    """Run cases in a child; a case that kills it is named by its seed."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.segments", str(seed), str(seconds)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        said, _ = child.communicate(timeout=seconds + HANGS_AFTER_S)
    except subprocess.TimeoutExpired:
        child.kill()
        said, _ = child.communicate()
        raise AssertionError(f"the case of seed {said.split()[-1]} does not end") from None
    assert child.returncode == 0, f"the case of seed {said.split()[-1]} ends in {child.returncode}"
    return int(said.split()[-1]) - seed


def main() -> None:
    seed, seconds = int(sys.argv[1]), float(sys.argv[2])
    until = time.monotonic() + seconds
    # A descriptor, not a stream: nothing is lost with a crash.
    while time.monotonic() < until:
        os.write(1, b"%d\n" % seed)
        choices = random.Random(seed)
        choices.choice((_ledger_case, _ring_case))(choices)
        seed += 1
    os.write(1, b"%d\n" % seed)


def _spoil(fd: int, choices: random.Random, begin: int) -> None:
    """Write over some words from `begin` on: random ones, edges, and small changes."""
    size = os.fstat(fd).st_size
    for _ in range(choices.randrange(1, 12)):
        at = choices.randrange(begin, size - 8)
        at -= at % choices.choice((1, 4, 8))
        word = int.from_bytes(os.pread(fd, 8, at), "little")
        value = choices.choice(
            [choices.getrandbits(64), choices.choice(EDGES), word ^ (1 << choices.randrange(64))]
        )
        os.pwrite(fd, value.to_bytes(8, "little"), at)


def _begin(choices: random.Random, *fields: str) -> int:
    """Where to spoil from: often close to the words that matter most."""
    return max(choices.choice([0, *(LAYOUT[field] for field in fields)]) - 8, 0)


def _calmly(call: Callable[[], object]) -> None:
    with contextlib.suppress(*REFUSALS):
        call()


# --- ledgers -----------------------------------------------------------------------------


def _ledger_case(choices: random.Random) -> None:
    key_size = choices.choice((5, 36, 64))
    engine = Ledger.create(choices.choice((1, 2, 9, 64, 300)), key_size)
    keys = [choices.randbytes(key_size) for _ in range(12)]
    ledgers = [engine]
    for _ in range(6):
        _use(choices.choice(ledgers), keys, choices)
        _spoil(engine.fd, choices, _begin(choices, "ledger.epoch", "ledger.entries"))
        with contextlib.suppress(*REFUSALS):
            ledgers.append(Ledger.attach(engine.fd))
        for ledger in ledgers:
            _use(ledger, keys, choices)
    for ledger in ledgers:
        ledger.close()


def _use(ledger: Ledger, keys: list[bytes], choices: random.Random) -> None:
    some = b"".join(choices.choices(keys, k=choices.randrange(5)))
    slots = bytearray()

    def allocate() -> None:
        state = choices.choice((FILLING, LANDING))
        allocated = ledger.allocate(len(some) // ledger.key_size, state)
        if allocated is not None:
            slots.extend(allocated[0])

    def pin() -> None:
        slots.extend(choices.choice((ledger.pin_many, ledger.pin_prefix))(some))

    calls: list[Callable[[], object]] = [
        allocate,
        pin,
        lambda: ledger.publish(bytes(slots), some, choices.random() < 0.5),
        lambda: ledger.free(bytes(slots)),
        lambda: ledger.unpin_many(bytes(slots) + choices.randbytes(8 * choices.randrange(2))),
        lambda: ledger.lookup_prefix(some),
        lambda: ledger.contains_many(some),
        lambda: ledger.touch_many(some),
        lambda: ledger.find(choices.choice(keys)),
        ledger.drop_ready,
        ledger.reclaim,
        ledger.zero_control_pins,
        ledger.counts,
        lambda: ledger.counters("control").read(),
        lambda: ledger.counters("engine").add("pulls"),
    ]
    for call in choices.choices(calls, k=12):
        # An attached ledger may not write at all.
        with contextlib.suppress(PermissionError):
            _calmly(call)


# --- rings -------------------------------------------------------------------------------


def _ring_case(choices: random.Random) -> None:
    capacity = 1 << choices.randrange(12, 17)
    ring = Ring.create(capacity, "fuzz")
    producer, consumer = ring.producer(-1), ring.consumer(-1)
    for _ in range(6):
        for _ in range(choices.randrange(20)):
            record = choices.randbytes(choices.choice((0, 1, 8, 100, capacity // 3)))
            _calmly(partial(producer.push, record))
        _spoil(ring.fd, choices, _begin(choices, "ring.tail", "ring.head", "ring.records"))
        _calmly(lambda: _attach(ring.fd))
        _calmly(lambda: _drain(consumer.pop, ring.max_record, choices))
        _calmly(consumer.prepare_sleep)
        _calmly(consumer.finish_sleep)
    ring.close()


def _attach(fd: int) -> None:
    other = Ring.attach(fd)
    _calmly(lambda: other.producer(-1).push(b"x" * 50))
    _calmly(lambda: _drain(other.consumer(-1).pop, other.max_record, random.Random(0)))


def _drain(pop: Callable[[], bytes | None], longest: int, choices: random.Random) -> None:
    for _ in range(choices.randrange(1, 40)):
        record = pop()
        if record is None:
            return
        assert len(record) <= longest


if __name__ == "__main__":
    main()
