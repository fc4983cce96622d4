"""The C core under ThreadSanitizer, as plain C threads; `make tsan` runs this file.

Every program is also built with one memory order taken out. Then the sanitizer must
complain: it does see the orderings that it finds no fault with.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import mpkv.memory

NATIVE = Path(mpkv.memory.__file__).parent / "native"
PROGRAMS = Path(__file__).parent / "native"
CORE = [
    f"{name}.c"
    for name in (
        *("segment", "ring", "ledger", "index", "table"),
        *("order", "reuse", "ghosts", "retention", "engine"),
    )
]
SECONDS = "4"
FLAGS = [
    *("-std=c11", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror", "-UNDEBUG"),
    # The sanitizer does not model fences; what they order here are atomics throughout.
    *("-fsanitize=thread", "-Wno-tsan"),
]


def build(program: str, native: Path, folder: Path) -> Path:
    binary = folder / program
    sources = [PROGRAMS / f"{program}.c", *(native / source for source in CORE)]
    command = ["gcc", *FLAGS, f"-I{native}", *map(str, sources), "-o", str(binary)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr
    return binary


def run(binary: Path) -> subprocess.CompletedProcess[str]:
    """Where addresses are randomised strongly, the sanitizer cannot place its shadow
    memory and gives up before main(): then once more without randomisation."""
    finished = subprocess.CompletedProcess[str]([], 1)
    for prefix in ([], ["setarch", "-R"]):
        finished = subprocess.run(
            [*prefix, str(binary), SECONDS],
            capture_output=True,
            text=True,
            timeout=60,
            env=os.environ | {"TSAN_OPTIONS": "halt_on_error=1"},
        )
        if "unexpected memory mapping" not in finished.stderr:
            break
    return finished


@pytest.mark.parametrize("program", ["ring_stress", "table_stress"])
def test_no_data_race(program: str, tmp_path: Path) -> None:
    finished = run(build(program, NATIVE, tmp_path))
    assert finished.returncode == 0, finished.stderr
    assert re.fullmatch(r"\d+ (records|published), .*\n", finished.stdout)


@pytest.mark.parametrize(
    ("program", "operation"),
    [
        ("ring_stress", "store_release"),
        ("ring_stress", "load_acquire"),
        ("table_stress", "store_release"),
        ("table_stress", "swap_if_release"),
        ("table_stress", "swap_if_acquire"),
    ],
)
def test_a_missing_order_is_noticed(program: str, operation: str, tmp_path: Path) -> None:
    weakened = tmp_path / "native"
    shutil.copytree(NATIVE, weakened)
    header = weakened / "atomics.h"
    before, body, after = re.split(
        rf"(?s)( {operation}\(.*?\n}}\n)", header.read_text(), maxsplit=1
    )
    weak = re.sub(r"memory_order_(acquire|release)", "memory_order_relaxed", body)
    assert weak != body
    header.write_text(before + weak + after)
    finished = run(build(program, weakened, tmp_path))
    assert finished.returncode != 0
    assert "WARNING: ThreadSanitizer: data race" in finished.stderr


def test_probes_stay_bounded(tmp_path: Path) -> None:
    finished = run(build("index_bounds", NATIVE, tmp_path))
    assert finished.returncode == 0, finished.stderr
