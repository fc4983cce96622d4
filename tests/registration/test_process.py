"""How the processes start, what they import, and that they always leave."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mpkv.errors import SegmentRefused
from mpkv.memory import create_segment
from mpkv.messages import Tier
from mpkv.registration.tier import map_tier
from tests.registration.harness import Helper, Initiator, Target

StartTarget = Callable[..., Target]


def _maps(helper: Helper) -> str:
    return Path(f"/proc/{helper.process.pid}/maps").read_text()


def test_neither_torch_nor_vllm_is_loaded(initiator: Initiator, start_target: StartTarget) -> None:
    target = start_target()
    target.ready()
    initiator.ready()
    for helper in (target, initiator):
        loaded = _maps(helper)
        assert "nixl" in loaded
        assert not re.search(r"libtorch|/torch/|vllm", loaded)


@pytest.mark.parametrize("whose", ["engine", "control"])
def test_the_initiator_leaves_with_its_owners(
    initiator: Initiator, start_target: StartTarget, whose: str
) -> None:
    target = start_target()
    initiator.add(target)
    initiator.fetched(target, [1], [1])
    getattr(initiator, whose).die()
    assert initiator.exit_code(within_s=2.0) == 0


def test_the_target_leaves_with_its_engine(start_target: StartTarget) -> None:
    target = start_target()
    target.ready()
    target.engine.die()
    assert target.exit_code(within_s=2.0) == 0


def test_leaving_does_not_wait_for_a_start(start_target: StartTarget) -> None:
    target = start_target()
    target.engine.die()
    assert target.exit_code(within_s=5.0) == 0


def test_an_interrupt_is_ignored_and_a_termination_obeyed(
    initiator: Initiator, start_target: StartTarget
) -> None:
    target = start_target()
    initiator.add(target)
    for helper in (target, initiator):
        helper.process.signal(signal.SIGINT)
    initiator.fetched(target, [1], [1])
    for helper in (target, initiator):
        helper.process.signal(signal.SIGTERM)
        assert helper.exit_code(within_s=2.0) == -signal.SIGTERM


def test_a_tier_smaller_than_promised_is_refused() -> None:
    fd = create_segment("test-tier", 4096)
    try:
        with pytest.raises(
            SegmentRefused, match="4096 bytes, but 2 blocks of 4096 bytes need 8192"
        ):
            map_tier(Tier(fd, 2, 4096))
    finally:
        os.close(fd)


def test_a_backend_that_does_not_exist_is_named(
    helpers: list[Helper], capfd: pytest.CaptureFixture[str]
) -> None:
    initiator = Initiator(backends=("TELEPATHY",))
    helpers.append(initiator)
    assert initiator.exit_code(within_s=5.0) == 1
    said = capfd.readouterr().err
    assert "ERROR mpkv.initiator [test] the initiator cannot go on" in said
    assert "no working backend 'TELEPATHY'" in said
    assert "'UCX'" in said
    assert "Traceback" not in said


def test_nothing_is_said_when_all_is_well(
    helpers: list[Helper], capfd: pytest.CaptureFixture[str]
) -> None:
    initiator, target = Initiator(), Target()
    helpers += [initiator, target]
    initiator.add(target)
    initiator.fetched(target, [1], [1])
    initiator.remove(target)
    assert initiator.counted()["peers_removed"] == 1
    initiator.control.die()
    target.engine.die()
    assert initiator.exit_code(within_s=2.0) == 0
    assert target.exit_code(within_s=2.0) == 0
    said = capfd.readouterr()
    lines = said.err.splitlines()
    assert [line.partition("[test] ")[2].split()[2] for line in lines] == ["added", "removed"]
    assert all(" INFO mpkv.initiator [test] peer " in line for line in lines)
    assert said.out == ""


@pytest.mark.parametrize(
    ("cuda", "flavour"), [("'12.8'", "nixl_cu12"), ("'13.0'", "nixl_cu13"), ("None", "nixl_cu1")]
)
def test_the_cuda_flavour_follows_a_torch_that_is_never_imported(
    tmp_path: Path, cuda: str, flavour: str
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('torch was imported')")
    (tmp_path / "torch" / "version.py").write_text(f"cuda = {cuda}")
    code = """
import sys
from mpkv.registration.bindings import load_bindings
print(load_bindings().__name__)
assert not [name for name in sys.modules if name.startswith("torch")]
"""
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(flavour)
