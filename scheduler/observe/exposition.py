"""Prometheus' text format: metrics as text, and numbers from such text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from scheduler.observe.metrics import Family

#: What an HTTP response with such text says that it is.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_LINE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?')
_ESCAPES: Final = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}


def write_text(families: Iterable[Family]) -> str:
    """Return metrics in version 0.0.4 of the format."""
    lines: list[str] = []
    for family in families:
        told = family.help.replace("\\", "\\\\").replace("\n", "\\n")
        lines += (f"# HELP {family.name} {told}", f"# TYPE {family.name} {family.kind}")
        for sample in family.samples:
            labels = ",".join(f'{key}="{_escaped(text)}"' for key, text in sample.labels.items())
            where = f"{{{labels}}}" if labels else ""
            value = float(sample.value)
            shown = str(int(value)) if value.is_integer() else repr(value)
            lines.append(f"{family.name}{sample.suffix}{where} {shown}")
    return "\n".join(lines) + "\n"


def read_text(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield each number's name, labels and value.

    Raises ValueError for text of another kind.
    """
    for line in text.split("\n"):
        if not line or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise ValueError(f"no line of metrics: {line[:80]!r}")
        name, labels, value = found.groups()
        pairs = _LABEL.findall(labels or "")
        yield name, {key: _plain(quoted) for key, quoted in pairs}, float(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _plain(text: str) -> str:
    return re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0]), text)
