"""Sources that requests name: hosts of all kinds, and resolvers that answer oddly or late.

Each ends as a miss with a reason, and a source with a good address serves meanwhile.
"""

from typing import Any

from hypothesis import strategies as st

from mpkv.engine.source import LONGEST_HOST, parse_source
from mpkv.messages import PullFailed
from tests.control.common import keys, wait_for
from tests.control.harness import Plane
from tests.fuzz.explore import explore
from tests.fuzz.odd_names import WELL_KNOWN

HELD = keys("held", 4)
DEADLINE_S = 0.3
GROWTH_BYTES = 64 << 20

_label = st.text("abcxyz019-_", min_size=2, max_size=12)
_names = st.lists(_label, min_size=1, max_size=5).map(".".join)
_addresses = st.one_of(
    st.ip_addresses().map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address}]"),
    st.sampled_from(
        ["::1%lo", "[::1%lo]", "fe80::1%nosuchlink", "127.1", "0x7f.1", "*", "[", "[]"]
    ),
)
_hosts = st.one_of(
    _names,
    _names,
    _addresses,
    st.text(max_size=20),
    st.text(min_size=200, max_size=400),
    st.sampled_from(["a" * 64, "a." * 126, "x" * LONGEST_HOST, "x" * 100_000, "\0", "\x1b[2J"]),
    st.sampled_from(["localhost:1", "a:b", "bücher.example", "xn--bcher-kva.example", "tcp://a"]),
)
_anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
_ports: st.SearchStrategy[Any] = st.one_of(
    st.integers(0, 65536), st.integers(1, 65535).map(str), _anything
)
_sources: st.SearchStrategy[Any] = st.one_of(
    st.fixed_dictionaries({"remote_host": _hosts, "remote_port": _ports}),
    st.fixed_dictionaries({"remote_host": _hosts, "remote_port": st.just(7710)}),
    st.fixed_dictionaries({"remote_host": _hosts, "remote_port": st.just(7710)}),
    st.dictionaries(st.sampled_from(["remote_host", "remote_port", "kv_request_id"]), _anything),
    _anything,
)
_cases = st.lists(_sources, max_size=6)


class Asked:
    """An engine that believes what requests say, and a source that it is told of by none."""

    def __init__(self, source: Plane, plane: Plane) -> None:
        self._source = source
        self._plane = plane

    def examine(self, named: list[Any]) -> None:
        plane = self._plane
        pulls = []
        for params in named:
            address = parse_source({"remote_kv_source": params})
            if address is not None:
                assert address.isprintable()
                assert len(address) <= LONGEST_HOST + 6
                pulls.append(plane.pull(address, HELD))
            if isinstance(params, dict) and isinstance(params.get("remote_host"), str):
                # Its control plane would not even be told of some of them.
                raw = f"{params['remote_host'][:2000]}:{params.get('remote_port')}"
                pulls.append(plane.pull(raw.encode(errors="replace").decode(), HELD))
        # More than once only when the machine has no time for it.
        wait_for(lambda: _fetched(plane, self._source.address), "a pull from a good address")
        for pull in pulls:
            answer = plane.answer(pull)
            assert isinstance(answer, PullFailed), "blocks came from a made-up name"
            assert answer.detail
            assert answer.detail.isprintable()
        plane.records.clear()
        assert plane.process.poll() is None, plane.log()[-3000:]
        assert not plane.count("dropped_by_fault"), plane.log()[-3000:]
        assert "Traceback" not in plane.log(), plane.log()[-3000:]


def run(seconds: float, seed: int) -> int:
    with (
        Plane("source") as source,
        Plane("plane", deadline_s=DEADLINE_S, module="tests.fuzz.odd_names") as plane,
    ):
        source.wait_ready()
        plane.wait_ready()
        source.store(HELD)
        asked = Asked(source, plane)
        before = plane.resident_bytes()
        examined = explore(asked.examine, _cases, seconds, seed)
        assert plane.resident_bytes() < before + GROWTH_BYTES
        known = f"{WELL_KNOWN}:{source.port}"
        wait_for(lambda: _fetched(plane, known), "a pull from a source with a name")
    return examined


def _fetched(plane: Plane, address: str) -> bool:
    return plane.fetch(address, HELD) == list(range(len(HELD)))
