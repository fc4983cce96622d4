"""Results for people: plain text on a terminal, Markdown in a report."""

from typing import Any

from mpkv_cli.bench.machine import machine_line


def as_text(result: dict[str, Any]) -> str:
    """`result` is what `Result.as_json` made."""
    parts = [f"mpkv bench {result['benchmark']}", machine_line(result["machine"])]
    for table in result["tables"]:
        parts += ["", table["title"], *_aligned([table["columns"], *table["rows"]])]
    if result["notes"]:
        parts += ["", *result["notes"]]
    return "\n".join(parts)


def as_markdown(result: dict[str, Any], plot: str) -> str:
    """One section; `plot` is the file beside the report, "" for none."""
    parts = [f"## {result['benchmark']}", "", f"Parameters: {_parameters(result)}."]
    for table in result["tables"]:
        parts += ["", table["title"], ""]
        parts += [_row(table["columns"]), _row(["---"] * len(table["columns"]))]
        parts += [_row(row) for row in table["rows"]]
    for note in result["notes"]:
        parts += ["", note]
    if plot:
        parts += ["", f"![{result['benchmark']}]({plot})"]
    return "\n".join([*parts, ""])


def _parameters(result: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in result["parameters"].items())


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _aligned(rows: list[list[str]]) -> list[str]:
    """The first column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines
