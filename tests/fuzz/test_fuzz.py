"""A short run of each target of `make fuzz`, under one seed."""

import importlib

import psutil
import pytest

from tests.fuzz.__main__ import TARGETS

SEED = 20
SECONDS = 1.5


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_found_in_a_moment(target: str) -> None:
    assert importlib.import_module(f"tests.fuzz.{target}").run(SECONDS, SEED) > 0
    assert psutil.Process().children(recursive=True) == []
