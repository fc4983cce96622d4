"""Statistics and tables, against numbers worked out by hand."""

import pytest

from mpkv_cli.bench.show import as_markdown, as_text
from mpkv_cli.bench.summary import growth_exponent, line_slope, summarize


def test_a_summary_of_a_hundred_numbers() -> None:
    summary = summarize([float(number) for number in range(100, 0, -1)])
    assert (summary.n, summary.p50, summary.p99) == (100, 50.5, 99.0)
    assert summary.quartiles == (25.0, 75.0)
    assert (summary.lowest, summary.highest) == (1.0, 100.0)


def test_one_number_is_its_own_summary() -> None:
    summary = summarize([2.0])
    assert (summary.p50, summary.p99, summary.quartiles) == (2.0, 2.0, (2.0, 2.0))


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        summarize([])


def test_slopes() -> None:
    assert line_slope([1, 2, 4], [5, 7, 11]) == pytest.approx(2)
    assert growth_exponent([1, 10, 100], [3, 3, 3]) == pytest.approx(0)
    assert growth_exponent([1, 10, 100], [3, 30, 300]) == pytest.approx(1)


RESULT = {
    "benchmark": "example",
    "machine": {
        "cpu": "a processor",
        "cores": 2,
        "memory_bytes": 24 << 30,
        "virtual": True,
        "kernel": "6.1",
        "python": "3.11",
        "nixl": "1.5.1",
        "vllm": "0.32.0",
        "zeromq": "4.3.5",
        "transport": "by hand",
        "load_before": 0.5,
        "stolen_share": 0.012,
    },
    "parameters": {"keys": [1, 2]},
    "tables": [{"title": "Milliseconds", "columns": ["", "p50"], "rows": [["grant", "1.5"]]}],
    "notes": ["A note."],
}


def test_a_result_as_text() -> None:
    assert as_text(RESULT).splitlines() == [
        "mpkv bench example",
        "virtual machine: 2 cores of a processor, 24 GiB, Linux 6.1, Python 3.11, vLLM 0.32.0, "
        "NIXL 1.5.1, ZeroMQ 4.3.5; by hand; load 0.5 before, 1.2% of its time stolen meanwhile",
        "",
        "Milliseconds",
        "         p50",
        "  grant  1.5",
        "",
        "A note.",
    ]


def test_a_result_as_markdown() -> None:
    assert as_markdown(RESULT, "example.png").splitlines() == [
        "## example",
        "",
        "Parameters: keys [1, 2].",
        "",
        "Milliseconds",
        "",
        "|  | p50 |",
        "| --- | --- |",
        "| grant | 1.5 |",
        "",
        "A note.",
        "",
        "![example](example.png)",
    ]
