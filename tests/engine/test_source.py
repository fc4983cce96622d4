"""What a request may name as its source, and what is politely not believed."""

import logging
from typing import Any

import pytest

from mpkv.cluster.settings import PeerAddress
from mpkv.engine.source import addresses, parse_source, sources


def params(host: Any, port: Any) -> dict[str, Any]:
    return {"remote_kv_source": {"kv_request_id": "r", "remote_host": host, "remote_port": port}}


@pytest.mark.parametrize(
    ("host", "port", "source"),
    [
        ("10.0.0.7", 7710, "10.0.0.7:7710"),
        ("node-3.example", "7711", "node-3.example:7711"),
        ("[::1]", 1, "[::1]:1"),
    ],
)
def test_a_source_is_host_and_port(host: Any, port: Any, source: str) -> None:
    assert parse_source(params(host, port)) == source


@pytest.mark.parametrize("absent", [None, {}, {"max_load_tokens": 3}])
def test_no_source_asked_for(absent: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert parse_source(absent) is None
    assert not caplog.records


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("", 7710), (None, 7710), (7, 7710), ("a" * 254, 7710), ("a b", 7710), ("é", 7710),
        ("tcp://x", 7710), ("h", 0), ("h", 65536), ("h", True), ("h", 7710.0), ("h", "7710x"),
        ("h", None), ("h", "-1"), ("h", "7" * 5000),
    ],
)  # fmt: skip
def test_a_malformed_source_is_none_and_said(
    host: Any, port: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert parse_source(params(host, port)) is None
    assert "remote_kv_source needs remote_host" in caplog.text


def test_a_source_that_is_no_object(caplog: pytest.LogCaptureFixture) -> None:
    assert parse_source({"remote_kv_source": "10.0.0.7:7710"}) is None
    assert "the request computes locally" in caplog.text


def test_every_rank_of_a_peer_may_be_named() -> None:
    peers = (PeerAddress("b", "10.0.0.8", 7710, ranks=3), PeerAddress("c", "c.example", 80))
    zero, one, two = (f"10.0.0.8:{7710 + rank}" for rank in range(3))
    assert addresses(peers) == {zero, one, two, "c.example:80"}
    assert sources(peers) == {
        zero: (zero, (one, two)),
        one: (one, (zero, two)),
        two: (two, (zero, one)),
        "c.example:80": ("c.example:80", ()),
    }


def test_a_rank_asks_the_others_of_its_node_and_not_itself() -> None:
    own = (PeerAddress("a", "10.0.0.7", 7710, ranks=3),)
    zero, one, two = (f"10.0.0.7:{7710 + rank}" for rank in range(3))
    assert sources(own, one) == {
        zero: (zero, (two,)),
        one: (zero, (two,)),
        two: (two, (zero,)),
    }
    alone = (PeerAddress("a", "10.0.0.7", 7710),)
    assert sources(alone, zero) == {zero: (zero, ())}
