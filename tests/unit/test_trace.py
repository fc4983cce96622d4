"""Tracing serves tests; what is traced must not suffer from it."""

import json
import os
from pathlib import Path

import pytest

from mpkv.errors import ConfigRefused
from mpkv.trace import open_trace


def test_events_are_lines_with_a_stamp(tmp_path: Path) -> None:
    trace = open_trace(str(tmp_path / "new"), "a-engine")
    trace("grant", blocks=3)
    trace("done")
    (file,) = (tmp_path / "new").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert file.name == f"a-engine-{os.getpid()}.jsonl"
    assert [(line["event"], line["process"]) for line in lines] == [
        ("grant", "a-engine"),
        ("done", "a-engine"),
    ]
    assert lines[0]["blocks"] == 3
    assert lines[0]["at"] <= lines[1]["at"]


def test_without_a_directory_nothing_is_written(tmp_path: Path) -> None:
    open_trace("", "a-engine")("grant")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigRefused, match=r"trace_dir: .*file.* cannot be written"):
        open_trace(str(tmp_path / "file"), "a-engine")


def test_a_full_disk_ends_tracing_and_nothing_else(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    trace = open_trace(str(tmp_path), "a-engine")
    (file,) = tmp_path.iterdir()
    # /dev/full is a real full disk.
    full = os.open("/dev/full", os.O_WRONLY)
    (traced,) = [
        int(fd)
        for fd in os.listdir("/proc/self/fd")
        if os.path.realpath(f"/proc/self/fd/{fd}") == str(file)
    ]
    os.dup2(full, traced)
    os.close(full)
    trace("grant")
    trace("grant")
    assert caplog.text.count("tracing ends") == 1
