"""A process that grows beyond its bounds leaves, and says why."""

import re
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from mpkv.messages import Bounds
from tests.registration.harness import Helper, Initiator, Target

# Meeting its first peer costs either side more than twice that.
ROOM = 256 << 10
BEAT_S = 0.02


def _own_memory(helper: Helper) -> int:
    status = Path(f"/proc/{helper.process.pid}/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found
    return int(found[1]) << 10


@pytest.mark.parametrize("role", ["initiator", "target"])
def test_more_memory_than_its_bound(
    helpers: list[Helper], capfd: pytest.CaptureFixture[str], role: str
) -> None:
    make: Callable[..., Helper] = Initiator if role == "initiator" else Target
    usual = make()
    helpers.append(usual)
    _beats(usual, 1)
    bound = _own_memory(usual) + ROOM
    bounded = make(bounds=Bounds(BEAT_S, start_looks=1000, registration_memory=bound))
    helpers.append(bounded)
    _beats(bounded, 10)
    other = Target() if role == "initiator" else Initiator()
    helpers.append(other)
    initiator, target = (bounded, other) if role == "initiator" else (other, bounded)
    assert isinstance(initiator, Initiator)
    assert isinstance(target, Target)
    initiator.send(target.as_peer())
    assert bounded.exit_code(within_s=10.0) == 1
    lines = capfd.readouterr().err.splitlines()
    (error,) = [line for line in lines if " ERROR mpkv." in line]
    found = re.search(rf"mpkv\.{role} .* it leaks: (\d+) KiB .* at most (\d+) KiB", error)
    assert found, error
    assert int(found[1]) > int(found[2]) == bound >> 10


def test_more_descriptors_than_it_may_have(
    helpers: list[Helper], capfd: pytest.CaptureFixture[str]
) -> None:
    target = Target(bounds=Bounds(BEAT_S))
    helpers.append(target)
    _beats(target, 3)
    pid = target.process.pid
    used = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    # What it inherited may have higher numbers than it has descriptors.
    free = min(set(range(len(used) + 1)) - used)
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free + 1, hard))
    assert target.exit_code(within_s=10.0) == 1
    lines = capfd.readouterr().err.splitlines()
    (error,) = [line for line in lines if " ERROR mpkv." in line]
    assert "`ulimit -n`" in error


def _beats(helper: Helper, count: int) -> None:
    counters = helper.ledger.counters("target" if isinstance(helper, Target) else "initiator")
    helper.wait_until(lambda: counters.value("beats") >= count)
