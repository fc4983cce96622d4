"""Huge pages under a real /dev/shm, mounted for the test in a namespace of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os, sys
from mpkv.engine.huge_pages import create_with_huge_pages
path, size = "/dev/shm/vllm_offload_mpkv-test.mmap", 16 << 20
print(create_with_huge_pages(path, size))
print(sorted(os.listdir("/dev/shm")))
if os.path.exists(path):
    from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
    region = SharedOffloadRegion("mpkv-test", 4096, 0, 4096, 4096)
    print(region.total_size_bytes, region._creator)
    region.cleanup()
"""


def run_on(mount_options: str) -> list[str]:
    """What PROGRAM prints where /dev/shm is a tmpfs with these options."""
    script = f'mount -t tmpfs -o {mount_options} tmpfs /dev/shm && exec "$0" -c "$1"'
    result = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, sys.executable, PROGRAM],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return [line for line in result.stdout.splitlines() if "INFO" not in line]


def test_they_are_used_where_they_are_given() -> None:
    said, files, region = run_on("size=64m,huge=advise")
    assert said == "huge pages under 16 of 16 MiB"
    assert files == "['vllm_offload_mpkv-test.mmap']"
    # vLLM joined the file instead of making one.
    assert region == f"{16 << 20} False"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("size=64m", "is mounted without huge pages, which READs on one host gain from (`mount"),
        ("size=8m,huge=advise", "ordinary pages: /dev/shm has not room enough"),
    ],
)
def test_without_them_vllm_makes_its_own_region(options: str, sentence: str) -> None:
    said, files = run_on(options)
    assert sentence in said
    assert files == "[]"
