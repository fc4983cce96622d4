"""Regions that killed engines have left are removed, and only those."""

import fcntl
import logging
import os
import time
from pathlib import Path

import pytest

from mpkv_cli.leftovers import remove_stale_regions


def region(folder: Path, name: str, age_s: float) -> Path:
    path = folder / f"vllm_offload_{name}.mmap"
    path.write_bytes(b"x" * 4096)
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_an_old_region_without_a_user_is_removed_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stale = region(tmp_path, "mpkv-a-01234567", age_s=120)
    with caplog.at_level(logging.INFO, "mpkv.launch"):
        assert remove_stale_regions(tmp_path) == [stale]
    assert not stale.exists()
    assert f"removed {stale} (4096 bytes), left by an engine that was killed" in caplog.text


def test_a_region_in_use_stays_until_its_user_is_gone(tmp_path: Path) -> None:
    used = region(tmp_path, "mpkv-a-01234567_dp3", age_s=120)
    with used.open("rb") as worker:
        fcntl.flock(worker, fcntl.LOCK_SH)
        assert remove_stale_regions(tmp_path) == []
        assert used.exists()
    assert remove_stale_regions(tmp_path) == [used]


def test_young_and_foreign_files_stay(tmp_path: Path) -> None:
    young = region(tmp_path, "mpkv-a-89abcdef", age_s=5)
    other = region(tmp_path, "01234567", age_s=120)
    target = tmp_path / "precious"
    target.write_text("kept")
    os.utime(target, (0, 0))
    link = tmp_path / "vllm_offload_mpkv-link.mmap"
    link.symlink_to(target)
    assert remove_stale_regions(tmp_path) == []
    assert young.exists()
    assert other.exists()
    assert link.is_symlink()
    assert target.read_text() == "kept"
