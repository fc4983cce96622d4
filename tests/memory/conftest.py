from collections.abc import Iterator

import pytest

from mpkv.memory import Ledger
from tests.memory.blocks import BLOCKS, KEY_SIZE


@pytest.fixture
def engine() -> Iterator[Ledger]:
    ledger = Ledger.create(BLOCKS, KEY_SIZE)
    yield ledger
    ledger.close()


@pytest.fixture
def control(engine: Ledger) -> Iterator[Ledger]:
    ledger = Ledger.attach(engine.fd)
    yield ledger
    ledger.close()
