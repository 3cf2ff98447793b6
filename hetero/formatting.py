"""Text for people: sizes and times with units, counts, and names without control characters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: Units of sizes and of times, the largest first.
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
#: From this fraction of a unit on, three digits round up to the unit.
_ROUND = 0.9995
_TIMES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def visible(text: str, keep: str = "") -> str:
    r"""Return text with control characters escaped, such as ``\x1b``, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )


def nbytes_text(nbytes: float | None) -> str:
    """Return a size for people: ``1.5 MB``; ``?`` for None."""
    if nbytes is None:
        return "?"
    for unit, name in _SIZES:
        if nbytes >= unit * _ROUND:
            return f"{nbytes / unit:.3g} {name}"
    return f"{nbytes:.0f} B"


def seconds_text(seconds: float | None) -> str:
    """Return a duration for people: ``8.1 ms``; ``?`` for None."""
    if seconds is None:
        return "?"
    for unit, name in _TIMES:
        if seconds >= unit * _ROUND:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e6:.2g} µs" if seconds else "0"


def count_text(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 node``, ``2,000 nodes``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shapes_text(shapes: Mapping[str, Sequence[int]]) -> str:
    """Return shapes by name: ``x [1, 3], y [2]``."""
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())


def port_text(port: dict[str, Any]) -> str:
    """Return a port's type and shape: ``tensor(float) [1, 3, ?]``."""
    shape = port["shape"]
    sizes = "" if shape is None else f" [{', '.join('?' if d is None else str(d) for d in shape)}]"
    return f"{port['type'] or 'unknown type'}{sizes}"
