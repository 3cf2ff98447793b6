"""Expected misses as data: one a line, ``kind/name  reason``."""

from __future__ import annotations

from pathlib import Path


def read_misses(path: Path) -> dict[str, str]:
    """Return case name -> reason; blank lines and ``#`` lines are skipped."""
    found = {}
    for line in path.read_text().splitlines():
        name, _, reason = line.strip().partition("  ")
        if name and not name.startswith("#"):
            if not reason.strip():
                raise ValueError(f"{path.name}: {name} is listed without a reason")
            found[name] = reason.strip()
    return found


def may_pass(reason: str) -> bool:
    """Return whether chance or the machine decides about a listed case."""
    return reason.startswith("varies:")
