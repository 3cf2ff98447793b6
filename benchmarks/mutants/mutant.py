"""A small change of the code, and the list of changes that keep the behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

_EQUIVALENT: Final = Path(__file__).with_name("equivalent.txt")


@dataclass(frozen=True)
class Mutant:
    """One change of one expression or statement."""

    path: str
    #: Qualified name of the outermost function that contains the change; empty outside functions.
    function: str
    first_line: int
    last_line: int
    #: Texts before and after the change, without most of their common parts.
    change: str
    #: Position among equal changes of the same function.
    occurrence: int

    @property
    def key(self) -> str:
        """Identity that survives changes of other functions."""
        number = f" #{self.occurrence}" if self.occurrence else ""
        return f"{self.path}::{self.function or '(module)'}: {self.change}{number}"


def equivalent_mutants() -> dict[str, str]:
    """Return the listed equivalent mutants with the reason of each."""
    lines = (line for line in _EQUIVALENT.read_text().splitlines() if line and line[0] != "#")
    return dict(line.rsplit(" | ", 1) for line in lines)
