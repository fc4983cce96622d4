"""The ring that connects mpkv's processes, beside other queues of Python's world.

Between two processes: how many records a second when both are awake, and how long it takes
to wake the one that sleeps. In one process: what putting and taking cost.
"""

import contextlib
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from mpkv.errors import HelperFailed
from mpkv_cli.bench.progress import Progress
from mpkv_cli.bench.queue_kinds import (
    DEPTH,
    RECORD_BYTES,
    WAIT_S,
    IceoryxKind,
    Kind,
    RingKind,
    all_kinds,
)
from mpkv_cli.bench.result import SUMMARY_COLUMNS, Chart, Result, Series, Table, summary_cells
from mpkv_cli.bench.summary import Summary, summarize

RECORD = bytes(RECORD_BYTES)
# Long enough that the receiver sleeps again before the next record.
PAUSE_S = (0.0005, 0.0015)
WARM_UP = 50
LEAVE_S = 10.0


@dataclass
class _Samples:
    """Seconds; the rates are records per second."""

    put: list[float] = field(default_factory=list)
    take: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    wake: list[float] = field(default_factory=list)
    # System calls made for `rates`, where the queue can tell.
    signals: int = 0


def measure(*, records: int, repeats: int, wakes: int, progress: Progress) -> Result:
    """`repeats` times `records` records each way; `wakes` records to a sleeping receiver."""
    found: dict[str, _Samples] = {}
    kinds = all_kinds()
    for repeat in range(repeats):
        for kind in kinds:
            progress.step(repeat, repeats, kind.name)
            samples = found.setdefault(kind.name, _Samples())
            _alone(kind(), min(records, DEPTH // 2), samples)
            _rate(kind(), records, samples)
    for kind in kinds:
        progress.say(f"waking through {kind.name}")
        _wake(kind(), wakes, found[kind.name])
    return _result(found, records, repeats, wakes)


# --- measuring -------------------------------------------------------------------------


def _alone(kind: Kind, count: int, samples: _Samples) -> None:
    """Both ends in this process, one after the other."""
    receiver, send = kind.receiver(), kind.sender(wakes=False)
    started = time.perf_counter()
    for _ in range(count):
        send(RECORD)
    sent = time.perf_counter()
    left = count
    while left:
        if receiver.take() is not None:
            left -= 1
        elif time.perf_counter() > sent + WAIT_S:
            raise HelperFailed(f"{kind.name} lost a record")
    taken = time.perf_counter()
    samples.put.append((sent - started) / count)
    samples.take.append((taken - sent) / count)
    kind.close()


def _rate(kind: Kind, count: int, samples: _Samples) -> None:
    """From one process to another, both awake: records per second after the first."""
    with _other_process(_send_all, kind, count) as other:
        receiver = kind.receiver()
        other.send("go")
        take = receiver.take
        until = time.monotonic() + WAIT_S
        while take() is None:
            if time.monotonic() > until:
                raise HelperFailed(f"nothing comes through {kind.name}")
        started = time.perf_counter()
        left = count - 1
        while left:
            left -= take() is not None
        samples.rates.append((count - 1) / (time.perf_counter() - started))
        _receive(other)
    if isinstance(kind, RingKind):
        samples.signals += kind.signals()
    kind.close()


def _wake(kind: Kind, count: int, samples: _Samples) -> None:
    """From putting a record until a receiver that slept has it."""
    count += WARM_UP
    with _other_process(_stamp_all, kind, count) as other:
        _receive(other)
        send = kind.sender(wakes=True)
        sent = []
        for _ in range(count):
            time.sleep(random.uniform(*PAUSE_S))
            sent.append(time.monotonic_ns())
            send(RECORD)
        stamps = _receive(other)
    assert isinstance(stamps, list)
    samples.wake = [
        (stamp - moment) / 1e9
        for stamp, moment in zip(stamps[WARM_UP:], sent[WARM_UP:], strict=True)
    ]
    kind.close()


# --- the other process -----------------------------------------------------------------

Side = Callable[[Kind, int, "Connection[object, object]"], None]


def _send_all(kind: Kind, count: int, parent: "Connection[object, object]") -> None:
    _receive(parent)
    send = kind.sender(wakes=False)
    # Some queues lose what is sent before the receiver has been seen.
    while not send(RECORD):
        pass
    for _ in range(count - 1):
        while not send(RECORD):
            pass
    parent.send("done")
    # Some queues take with them what has not been received yet.
    parent.poll(WAIT_S)


def _stamp_all(kind: Kind, count: int, parent: "Connection[object, object]") -> None:
    receiver = kind.receiver()
    parent.send("ready")
    stamps = []
    for _ in range(count):
        receiver.wait()
        stamps.append(time.monotonic_ns())
    parent.send(stamps)


@contextlib.contextmanager
def _other_process(side: Side, kind: Kind, count: int) -> Iterator["Connection[object, object]"]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=side, args=(kind, count, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        with contextlib.suppress(OSError):
            ours.send("leave")
        ours.close()
        process.join(LEAVE_S)
        if process.is_alive():
            process.kill()
            process.join(LEAVE_S)


def _receive(connection: "Connection[object, object]") -> object:
    try:
        if connection.poll(2 * WAIT_S):
            return connection.recv()
    except EOFError:
        pass
    raise HelperFailed("the other process of the queue has failed")


# --- showing ---------------------------------------------------------------------------


def _result(found: dict[str, _Samples], records: int, repeats: int, wakes: int) -> Result:
    figures: dict[str, float] = {}
    for name, samples in found.items():
        suffix = "" if name == RingKind.name else f"_{_identifier(name)}"
        figures |= {
            f"records_per_s{suffix}": summarize(samples.rates).p50,
            f"put_s{suffix}": summarize(samples.put).p50,
            f"take_s{suffix}": summarize(samples.take).p50,
            f"wake_p50_s{suffix}": summarize(samples.wake).p50,
            f"wake_p99_s{suffix}": summarize(samples.wake).p99,
        }
    signals = found[RingKind.name].signals
    figures["signals_while_awake"] = signals
    notes = [
        f"Records of {RECORD_BYTES} bytes, queues of {DEPTH:,}. While both sides of the ring were "
        f"awake its sender made {signals} system calls for {records * repeats:,} records.",
    ]
    if not IceoryxKind.installed():
        notes.append("Not compared: iceoryx2 is not installed (pip install 'mpkv[bench]').")
    return Result(
        benchmark="queue",
        transport="shared memory",
        parameters={"records": records, "repeats": repeats, "wakes": wakes},
        figures=figures,
        tables=(_rates(found), _latencies(found)),
        chart=_chart(found),
        notes=tuple(notes),
    )


def _identifier(name: str) -> str:
    return name.lower().replace(".", "_").replace(" ", "_")


def _rates(found: dict[str, _Samples]) -> Table:
    rows = [
        (name, *summary_cells(summarize(samples.rates), 1e6)) for name, samples in found.items()
    ]
    return Table(
        "Million records a second between two processes", ("", *SUMMARY_COLUMNS), tuple(rows)
    )


def _latencies(found: dict[str, _Samples]) -> Table:
    rows = []
    for name, samples in found.items():
        for what, seconds in (
            ("put, in one process", samples.put),
            ("take, in one process", samples.take),
            ("until a sleeping receiver has it", samples.wake),
        ):
            rows.append((f"{name}: {what}", *summary_cells(summarize(seconds), 1e-6)))
    return Table("Microseconds", ("", *SUMMARY_COLUMNS), tuple(rows))


def _chart(found: dict[str, _Samples]) -> Chart:
    def bars(label: str, seconds: Callable[[_Samples], Sequence[float]]) -> Series:
        summaries: list[Summary] = [summarize(seconds(samples)) for samples in found.values()]
        return Series(
            label,
            tuple(float(at) for at in range(len(summaries))),
            tuple(each.p50 * 1e6 for each in summaries),
            tuple(each.quartiles[0] * 1e6 for each in summaries),
            tuple(each.quartiles[1] * 1e6 for each in summaries),
        )

    return Chart(
        "Queues between processes",
        "",
        "microseconds (median, middle half)",
        (
            bars("put", lambda samples: samples.put),
            bars("take", lambda samples: samples.take),
            bars("per record, both awake", lambda samples: [1 / each for each in samples.rates]),
            bars("waking the receiver", lambda samples: samples.wake),
        ),
        ticks=tuple(found),
        log="y",
    )
