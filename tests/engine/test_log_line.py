"""What vLLM logs every ten seconds: what changed, in a line; and /metrics has everything."""

from collections.abc import Iterator

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorLogging

from mpkv.engine.connector import MpkvConnector
from mpkv.engine.log_line import LONGEST
from mpkv.engine.metrics import CONTENT_EPOCH, TIER_BLOCKS, Meter
from mpkv.memory import Ledger
from mpkv.messages import MissReason

BLOCK_BYTES = 1 << 20


class Logging:
    """vLLM's own way from a meter to its log."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._logging = KVConnectorLogging(None)
        self._logging.connector_cls = MpkvConnector

    def step(self) -> None:
        stats = self._meter.take(0)
        if stats is not None:
            self._logging.observe(stats.to_dict())

    def line(self) -> str:
        """What is logged now; "" if nothing is."""
        told: list[str] = []
        self._logging.log(lambda text, *args: told.append(text % args))
        return "".join(told)


@pytest.fixture
def meter() -> Iterator[Meter]:
    ledger = Ledger.create(8, 36)
    yield Meter(ledger, BLOCK_BYTES)
    ledger.close()


def test_nothing_is_logged_while_nothing_is_pulled(meter: Meter) -> None:
    logging = Logging(meter)
    logging.step()
    assert logging.line() == ""


def test_a_line_has_what_came_and_what_did_not(meter: Meter) -> None:
    logging = Logging(meter)
    logging.step()
    meter.pulled("10.0.0.11:7710", 128, 0.001, 0.010)
    meter.lookup_ended(0.012)
    logging.step()
    meter.pulled("10.0.0.12:7710", 64, 0.001, 0.021)
    meter.missed("10.0.0.12:7710", MissReason.NOT_HELD, "")
    logging.step()
    assert logging.line() == (
        "KV Transfer metrics: pulled_blocks=192 (10.0.0.11:7710 128, 10.0.0.12:7710 64), "
        "pulled_MiB=192, pull_misses=1 (not_held 1), pull_ms=15.5 (mean of 2), "
        "lookup_delay_ms=12"
    )
    # Every line begins anew.
    assert logging.line() == ""
    meter.missed("10.0.0.12:7710", MissReason.NOT_HELD, "")
    logging.step()
    assert logging.line() == "KV Transfer metrics: pull_misses=1 (not_held 1)"


def test_a_line_stays_a_line(meter: Meter) -> None:
    logging = Logging(meter)
    for number in range(300):
        meter.pulled(f"{number}.{'x' * 200}.example:7710", 1 + number, 0.001, 0.01)
        for reason in MissReason:
            meter.missed("peer", reason, "")
    logging.step()
    line = logging.line()
    assert line.startswith("KV Transfer metrics: pulled_blocks=45150 (")
    assert "more=" in line
    assert len(line) <= len("KV Transfer metrics: ") + LONGEST


def test_the_metrics_still_get_all_of_it(meter: Meter) -> None:
    stats = meter.take(0)
    assert stats is not None
    assert not stats.is_empty()
    assert {TIER_BLOCKS, CONTENT_EPOCH} <= stats.data["data"].keys()
