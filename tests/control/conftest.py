"""Real control planes that leave nothing behind, however a test ends."""

import contextlib
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.control.harness import Plane
from tests.control.raw import RawPeer, RawSource, closing


@pytest.fixture
def start() -> Iterator[Callable[..., Plane]]:
    """`start(node, ...)` spawns a control plane; the test need not end it."""
    with contextlib.ExitStack() as stack:
        yield lambda node, **options: stack.enter_context(Plane(node, **options))
    assert psutil.Process().children(recursive=True) == []


@pytest.fixture
def pair(start: Callable[..., Plane]) -> tuple[Plane, Plane]:
    """A source and a destination, ready."""
    source, destination = start("source"), start("destination")
    source.wait_ready()
    destination.wait_ready()
    return source, destination


@pytest.fixture
def raw_peer() -> Iterator[Callable[..., RawPeer]]:
    with contextlib.ExitStack() as stack:
        yield lambda address, instance="raw": stack.enter_context(
            closing(RawPeer(address, instance))
        )


@pytest.fixture
def raw_source() -> Iterator[Callable[..., RawSource]]:
    with contextlib.ExitStack() as stack:
        yield lambda port=None: stack.enter_context(closing(RawSource(port)))
