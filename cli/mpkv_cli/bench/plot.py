"""Charts as PNG files, by matplotlib, which mpkv does not need for anything else."""

import textwrap
from pathlib import Path
from typing import Any

from mpkv.errors import ConfigRefused
from mpkv_cli.bench.result import Chart

# In characters; a longer line would be wider than the chart.
FOOTER_WIDTH = 170


def check_plotting() -> None:
    """Before anything is measured for a chart. Raises ConfigRefused."""
    _pyplot()


def draw(chart: Chart, footer: str, path: Path) -> None:
    pyplot = _pyplot()
    import matplotlib.ticker

    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    if chart.ticks:
        _bars(axes, chart)
    else:
        _lines(axes, chart)
    axes.set_title(chart.title)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    for axis, name in ((axes.xaxis, "x"), (axes.yaxis, "y")):
        if name in chart.log:
            axes.set(**{f"{name}scale": "log"})
            # Numbers, not powers of ten.
            axis.set_major_formatter(matplotlib.ticker.LogFormatter())
            axis.set_minor_formatter(matplotlib.ticker.LogFormatter(minor_thresholds=(2, 0.4)))
    axes.grid(True, axis="y", alpha=0.3)
    axes.legend(fontsize="small")
    footer = textwrap.fill(footer, FOOTER_WIDTH)
    figure.text(0.01, -0.01, footer, fontsize=6, color="gray", verticalalignment="top")
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def _lines(axes: Any, chart: Chart) -> None:
    for series in chart.series:
        axes.plot(series.x, series.y, marker="o", label=series.label)
        if series.low:
            axes.fill_between(series.x, series.low, series.high, alpha=0.2)


def _bars(axes: Any, chart: Chart) -> None:
    width = 0.8 / len(chart.series)
    for position, series in enumerate(chart.series):
        places = [x - 0.4 + width * (position + 0.5) for x in series.x]
        errors = None
        if series.low:
            errors = [
                [y - low for y, low in zip(series.y, series.low, strict=True)],
                [high - y for y, high in zip(series.y, series.high, strict=True)],
            ]
        axes.bar(places, series.y, width, yerr=errors, capsize=3, label=series.label)
    axes.set_xticks(range(len(chart.ticks)), chart.ticks)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigRefused(
            f"--plot needs matplotlib, which is not installed ({error}). "
            "Install it with: pip install 'mpkv[bench]'"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
