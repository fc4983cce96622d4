"""The place for another way to look up, measured beside mpkv's."""

from mpkv_cli.bench.lookup import RIVAL_ASKS, measure
from mpkv_cli.bench.progress import Progress
from mpkv_cli.bench.standin import KEY_SIZE


class _Rival:
    """Takes a hundred times as long when it is busy."""

    name = "a rival"

    def __init__(self) -> None:
        self.seconds = 1.0
        self.asked: list[int] = []

    def set_busy(self, step_s: float, held: float) -> None:
        self.seconds = 100.0

    def set_idle(self) -> None:
        self.seconds = 1.0

    def look_up(self, keys: bytes) -> float:
        self.asked.append(len(keys) // KEY_SIZE)
        return self.seconds


def test_a_rival_is_asked_for_the_same_keys_idle_and_busy() -> None:
    rival = _Rival()
    result = measure(
        keys=(4, 8),
        turns=1,
        asks=2,
        step_s=0.01,
        held=0.5,
        progress=Progress("lookup"),
        rival=rival,
    )
    assert rival.asked == 2 * ([4] * RIVAL_ASKS + [8] * RIVAL_ASKS)
    assert result.figures["against_idle_p50_s"] == 1.0
    assert result.figures["against_busy_p50_s"] == 100.0
    assert result.figures["against_to_busy"] == 100.0 / result.figures["grant_busy_p50_s"]
    assert result.parameters["against"] == "a rival"
