"""Output of benchmarks: a table for people, or one JSON document for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def print_rows(rows: Sequence[Mapping[str, Any]], as_json: bool, **more: Any) -> None:
    """Print rows and additional values."""
    if as_json:
        sys.stdout.write(json.dumps({"rows": rows, **more}) + "\n")
        return
    for name, value in more.items():
        print(f"{name}: {value}")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [columns, *([cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        print("  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)))


def names(text: str) -> list[str]:
    """Return the names in a list with commas."""
    return [name for name in text.split(",") if name]


def numbers(text: str) -> list[int]:
    """Return the numbers in a list with commas; ``k`` and ``M`` are thousands and millions."""
    return [_number(word) for word in names(text)]


def _number(word: str) -> int:
    factor = {"k": 1_000, "M": 1_000_000}.get(word[-1], 1)
    return round(float(word.rstrip("kM")) * factor)


def cell(value: Any) -> str:
    """Return a value as the text of a table's cell."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
