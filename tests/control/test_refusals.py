"""Engines that must not share: refused by name, in both logs, and nobody else suffers."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mpkv.control.compare import describe, differences, nixl_version
from mpkv.control.network.wire import PROTOCOL, Busy, Difference, Hello, Refuse, Welcome
from mpkv.messages import MissReason, PullFailed
from tests.control.common import COMPATIBILITY, CONTENT, keys, wait_for
from tests.control.harness import Plane
from tests.control.raw import RawPeer, RawSource

Start = Callable[..., Plane]
WANTED = keys("a", 3)

OTHER: dict[str, Any] = {
    "model": "other",
    "content": "run-17",
    "revision": "v2",
    "dtype": "float16",
    "cache_dtype": "fp8",
    "kv_layout": "LBNHC",
    "tokens_per_block": (32,),
    "blocks_per_chunk": 2,
    "block_bytes": 8192,
    "tensor_parallel": 2,
    "pipeline_parallel": 2,
    "prefill_context_parallel": 2,
    "decode_context_parallel": 2,
    "hash_algorithm": "xxhash_cbor",
    "hash_seed": "1",
    "key_size": 20,
}


def test_every_field_is_compared() -> None:
    assert set(OTHER) == set(COMPATIBILITY.__struct_fields__)
    assert differences(COMPATIBILITY, COMPATIBILITY) == ()
    for field, value in OTHER.items():
        other = msgspec.structs.replace(COMPATIBILITY, **{field: value})
        ours = str(getattr(COMPATIBILITY, field))
        assert differences(COMPATIBILITY, other) == (Difference(field, ours, str(value)),)


@pytest.mark.parametrize("algorithm", ["sha256", "xxhash", "builtin"])
def test_hashes_that_differ_between_processes_are_refused(algorithm: str) -> None:
    unstable = msgspec.structs.replace(COMPATIBILITY, hash_algorithm=algorithm)
    differing = differences(unstable, unstable)
    assert differing == (Difference("hash_algorithm", algorithm, algorithm),)
    assert "sha256_cbor" in describe(differing, "source")


@pytest.mark.parametrize(
    "field",
    ["block_bytes", "tensor_parallel", "dtype", "kv_layout", "model", "content", "hash_seed"],
)
def test_a_mismatch_is_named_with_both_values_in_both_logs(start: Start, field: str) -> None:
    value = OTHER[field]
    source = start("source")
    other = msgspec.structs.replace(COMPATIBILITY, **{field: value})
    destination = start("destination", peers=(source.address,), compatibility=other)
    destination.wait_ready()
    ours = str(getattr(COMPATIBILITY, field))
    here, there = f"{field} is {ours!r} here", f"{str(value)!r} there"
    wait_for(lambda: here in source.log() and there in source.log(), "the source's log")
    wait_for(
        lambda: f"{field} is {str(value)!r} here and {ours!r} there" in destination.log(),
        "the destination's log",
    )
    source.store(WANTED)
    answer = destination.answer(destination.pull(source.address, WANTED))
    assert isinstance(answer, PullFailed)
    assert answer.reason is MissReason.REFUSED
    assert field in answer.detail
    assert source.count("grants") == 0


def test_a_refusal_is_logged_once_and_spares_the_others(start: Start) -> None:
    source = start("source")
    stranger = start(
        "stranger", compatibility=msgspec.structs.replace(COMPATIBILITY, model="other")
    )
    friend = start("friend")
    for plane in (source, stranger, friend):
        plane.wait_ready()
    source.store(WANTED)
    for _ in range(5):
        answer = stranger.answer(stranger.pull(source.address, WANTED))
        assert isinstance(answer, PullFailed)
        assert answer.reason is MissReason.REFUSED
        assert friend.fetch(source.address, WANTED) == [0, 1, 2]
    assert source.log().count("refused stranger") == 1
    assert stranger.log().count("refuses to share") == 1


def test_the_same_refusal_again_is_not_logged_again(
    start: Start, raw_peer: Callable[..., RawPeer]
) -> None:
    source = start("source")
    source.wait_ready()
    other = msgspec.structs.replace(COMPATIBILITY, model="other\nERROR forged line")
    for number in range(3):
        peer = raw_peer(source.address, f"raw-{number}")
        hello = Hello(peer.instance, "raw\nnode", "10.0.0.9:1", other, CONTENT)
        assert isinstance(peer.ask(hello), Refuse)
    lines = [line for line in source.log().splitlines() if "refused" in line]
    assert len(lines) == 1
    assert "raw?node" in lines[0]
    assert "\nERROR forged" not in source.log()


def test_an_engine_does_not_pull_from_itself(start: Start) -> None:
    plane = start("alone")
    plane.wait_ready()
    answer = plane.answer(plane.pull(plane.address, WANTED))
    assert isinstance(answer, PullFailed)
    assert answer.reason is MissReason.REFUSED
    assert "itself" in answer.detail


def test_another_protocol_is_refused_by_name_on_both_sides(
    start: Start, raw_peer: Callable[..., RawPeer], raw_source: Callable[..., RawSource]
) -> None:
    plane, source = start("plane"), raw_source()
    plane.wait_ready()
    peer = raw_peer(plane.address)
    peer.send_frames([b"mpkv/999", b"whatever that version says"])
    assert isinstance(peer.receive(), Busy)
    wait_for(lambda: "speaks mpkv/999" in plane.log(), "the warning")
    # The other way round: what answers our Hello is of another version.
    pull = plane.pull(source.address, WANTED)
    route, _ = source.receive(Hello)
    source.socket.send_multipart([route, b"mpkv/999", b"?"])
    answer = plane.answer(pull)
    assert isinstance(answer, PullFailed)
    assert answer.reason is MissReason.REFUSED
    assert "'mpkv/999'" in answer.detail
    assert PROTOCOL.decode() in answer.detail


def test_another_minor_version_of_nixl_is_refused_by_name(
    start: Start, raw_peer: Callable[..., RawPeer]
) -> None:
    plane = start("plane")
    plane.wait_ready()
    ours = nixl_version()
    major, minor, *_ = ours.split(".")
    same, other = f"{major}.{minor}.99", f"{major}.{int(minor) + 1}.0"
    peer = raw_peer(plane.address)
    for version, kind in ((same, Welcome), ("", Welcome), (other, Refuse)):
        answer = peer.ask(Hello("raw", "raw", "127.0.0.1:1", COMPATIBILITY, CONTENT, version))
        assert isinstance(answer, kind)
    assert isinstance(answer, Refuse)
    assert answer.differing == (Difference("nixl", ours, other),)
    sentence = describe(answer.differing, "destination")
    assert sentence.startswith(f"nixl is '{other}' here and '{ours}' there")
    assert "same version of NIXL" in sentence
    wait_for(lambda: f"nixl is '{ours}' here" in plane.log(), "the source's log")


def test_blocks_of_another_size_are_refused_whatever_the_source_thinks(
    start: Start, raw_source: Callable[..., RawSource]
) -> None:
    plane, source = start("plane"), raw_source()
    plane.wait_ready()
    pull = plane.pull(source.address, WANTED)
    route, _ = source.receive(Hello)
    source.send(route, Welcome("s", "raw", "s.target", b"md", 0, 64, 123, CONTENT))
    answer = plane.answer(pull)
    assert isinstance(answer, PullFailed)
    assert answer.reason is MissReason.REFUSED
    assert "123" in answer.detail
    assert plane.warmed() == []


def test_a_mismatch_healed_by_a_restart_is_forgotten(start: Start) -> None:
    wrong = start("source", compatibility=msgspec.structs.replace(COMPATIBILITY, model="other"))
    destination = start("destination", peers=(wrong.address,))
    wait_for(lambda: "refuses to share" in destination.log(), "the refusal")
    wrong.kill()
    right = start("source", port=wrong.port)
    right.wait_ready()
    right.store(WANTED)
    wait_for(lambda: destination.fetch(right.address, WANTED) == [0, 1, 2], "the peer", 25.0)
