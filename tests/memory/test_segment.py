"""Making segments, and refusing to map what is not one."""

import fcntl
import os
import struct
from collections.abc import Callable, Iterator

import pytest

from mpkv.errors import SegmentRefused
from mpkv.memory import Ledger, Ring, create_segment, map_segment
from mpkv.memory._native import LAYOUT


def test_segment_is_zero_sealed_and_shared() -> None:
    fd = create_segment("test", 10_000)
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        assert seals == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        assert not os.get_inheritable(fd)
        with map_segment(fd) as one, map_segment(fd) as other:
            assert bytes(one) == bytes(10_000)
            one[9_999] = 7
            assert other[9_999] == 7
        for size in (0, 20_000):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
    finally:
        os.close(fd)


Attach = Callable[[int], Ring | Ledger]


@pytest.fixture(params=["ring", "ledger"])
def segment(request: pytest.FixtureRequest) -> Iterator[tuple[Attach, int]]:
    """A good segment and what attaches to its kind."""
    if request.param == "ring":
        ring = Ring.create(4096, "test")
        yield Ring.attach, ring.fd
        ring.close()
    else:
        ledger = Ledger.create(100, 36)
        yield Ledger.attach, ledger.fd
        ledger.close()


def put(fd: int, field: str, value: int, code: str = "Q", index: int = 0) -> None:
    packed = struct.pack(code, value)
    os.pwrite(fd, packed, LAYOUT[field] + index * len(packed))


def test_attach_accepts_a_good_segment(segment: tuple[Attach, int]) -> None:
    attach, fd = segment
    attached = attach(fd)
    assert attached.fd != fd
    attached.close()
    assert os.fstat(fd).st_size > 0


@pytest.mark.parametrize(
    ("field", "code", "sentence"),
    [
        ("header.magic", "Q", "Expected the segment magic .* found 0000000000000009; .* not one"),
        ("header.version", "I", "Expected segment version 1, found 9; .* same installation"),
        ("header.kind", "I", "Expected a (ring|ledger), found a segment of kind 9 .unknown kind."),
        ("header.layout", "Q", "Expected layout digest .* found 0000000000000009; .* same install"),
        ("header.size", "Q", "Expected a segment of 9 bytes as its header says, found a file of"),
        ("header.parameters", "Q", "Expected a (ring|ledger) whose .* fill.* found (capacity )?9"),
    ],
)
def test_attach_refuses_a_lying_header(
    segment: tuple[Attach, int], field: str, code: str, sentence: str
) -> None:
    attach, fd = segment
    put(fd, field, 9, code)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SegmentRefused, match=sentence):
        attach(fd)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("capacity", [0, 1, 4095, 8192, 1 << 63, (1 << 64) - 4096])
def test_ring_attach_refuses_a_capacity_that_does_not_fit(capacity: int) -> None:
    ring = Ring.create(4096, "test")
    put(ring.fd, "header.parameters", capacity)
    with pytest.raises(SegmentRefused, match=f"found capacity {capacity};"):
        Ring.attach(ring.fd)
    ring.close()


@pytest.mark.parametrize(
    ("blocks", "key_size"),
    [(0, 36), (99, 36), (101, 36), (100, 4), (100, 65), (100, 56), (1 << 32, 36), (1 << 63, 36)],
)
def test_ledger_attach_refuses_a_shape_that_does_not_fit(blocks: int, key_size: int) -> None:
    ledger = Ledger.create(100, 36)
    put(ledger.fd, "header.parameters", blocks, index=0)
    put(ledger.fd, "header.parameters", key_size, index=1)
    with pytest.raises(SegmentRefused, match=f"found {blocks} blocks with keys of {key_size}"):
        Ledger.attach(ledger.fd)
    ledger.close()


def test_ledger_attach_refuses_other_counter_names() -> None:
    ledger = Ledger.create(100, 36)
    put(ledger.fd, "header.parameters", 1, index=3)
    with pytest.raises(SegmentRefused, match="Expected counter names of digest"):
        Ledger.attach(ledger.fd)
    ledger.close()


def test_attach_refuses_the_other_kind() -> None:
    ring, ledger = Ring.create(4096, "test"), Ledger.create(100, 36)
    with pytest.raises(SegmentRefused, match=r"Expected a ledger, found .* kind 1 \(ring\)"):
        Ledger.attach(ring.fd)
    with pytest.raises(SegmentRefused, match=r"Expected a ring, found .* kind 2 \(ledger\)"):
        Ring.attach(ledger.fd)
    ring.close()
    ledger.close()


@pytest.mark.parametrize("attach", [Ring.attach, Ledger.attach])
def test_attach_refuses_files_that_could_shrink(attach: Attach, tmp_path: os.PathLike[str]) -> None:
    ring = Ring.create(4096, "test")
    content = os.pread(ring.fd, 1 << 20, 0)
    ring.close()

    unsealed = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(unsealed, content)
    with pytest.raises(SegmentRefused, match="sealed against shrinking, found one without"):
        attach(unsealed)
    os.close(unsealed)

    plain = os.open(os.path.join(tmp_path, "plain"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    os.write(plain, content)
    with pytest.raises(SegmentRefused, match="sealed against shrinking, found a file that takes"):
        attach(plain)
    os.close(plain)


@pytest.mark.parametrize("attach", [Ring.attach, Ledger.attach])
def test_attach_refuses_a_segment_shorter_than_a_header(attach: Attach) -> None:
    fd = create_segment("test", 16)
    with pytest.raises(SegmentRefused, match="Expected a segment of at least 64 bytes, found 16"):
        attach(fd)
    os.close(fd)


@pytest.mark.parametrize("attach", [Ring.attach, Ledger.attach])
def test_attach_refuses_a_pipe_and_a_closed_descriptor(attach: Attach) -> None:
    reader, writer = os.pipe()
    with pytest.raises(SegmentRefused, match="found a file that takes no seals"):
        attach(reader)
    os.close(reader)
    os.close(writer)
    with pytest.raises(OSError, match="Bad file descriptor"):
        attach(reader)
