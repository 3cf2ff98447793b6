"""Layouts: the meaning of each dimension of a tensor, such as ``NHWC``."""

from __future__ import annotations

import re
from typing import Final

from hetero.devices.errors import ArgumentError

#: Names for letters, allowed inside brackets.
_LETTERS: Final = {"BATCH": "N", "CHANNELS": "C", "DEPTH": "D", "HEIGHT": "H", "WIDTH": "W"}
_DOTS: Final = "..."


class Layout(str):
    """Layout of a tensor: one letter for each dimension, ``?`` for any, ``...`` for several.

    ``NHWC``, ``NC...``, ``[batch, height, width, channels]`` and ``[N,C,?,?]`` are layouts. N is
    the batch, C channels, D depth, H height, W width. Other letters have no predefined meaning.

    Raises
    ------
    ArgumentError
        If the text is not a layout.
    """

    __slots__ = ()

    def __new__(cls, layout_str: str = "...") -> Layout:
        """Parse a layout."""
        dimensions = _dimensions(str(layout_str))
        letters = [d for d in dimensions if d not in ("?", _DOTS)]
        if dimensions.count(_DOTS) > 1 or len(set(letters)) < len(letters):
            raise ArgumentError(
                f"layout {layout_str!r}: expected each letter and '...' at most once, as in "
                "'NHWC' or 'NC...'"
            )
        return super().__new__(cls, "".join(dimensions))

    @staticmethod
    def scalar() -> Layout:
        """Return the layout of a scalar."""
        return str.__new__(Layout, "")

    @property
    def empty(self) -> bool:
        """Whether no dimension has a letter."""
        return not self.replace(_DOTS, "")

    def has_name(self, dimension_name: str) -> bool:
        """Return whether a dimension has this name: ``N``, ``C``, ``BATCH``, ``height``."""
        word = dimension_name.strip().upper()
        return bool(word) and _LETTERS.get(word, word) in self.replace(_DOTS, "")

    def get_index_by_name(self, dimension_name: str) -> int:
        """Return a dimension's index; after ``...`` it is negative, counted from the end.

        Raises
        ------
        ArgumentError
            If no dimension has this name.
        """
        if not self.has_name(dimension_name):
            raise ArgumentError(f"layout {self}: no dimension is named {dimension_name!r}.")
        _, dots, after = self.partition(_DOTS)
        word = dimension_name.strip().upper()
        letter = _LETTERS.get(word, word)
        return after.index(letter) - len(after) if letter in after and dots else self.index(letter)

    def to_string(self) -> str:
        """Return the layout as OpenVINO's text, such as ``[N,C,H,W]`` or ``[N,...]``."""
        before, dots, after = self.partition(_DOTS)
        return f"[{','.join([*before, *([dots] if dots else []), *after])}]"

    def of_rank(self, rank: int, label: str) -> str:
        """Return one letter for each of `rank` dimensions; ArgumentError if the rank differs."""
        before, dots, after = self.partition(_DOTS)
        filler = "?" * (rank - len(before) - len(after)) if dots else ""
        if len(before + filler + after) != rank:
            raise ArgumentError(
                f"{label}: layout {self} has {len(before + after)} dimensions, but the tensor has "
                f"{rank}; use one letter for each, such as {'NHWC' if rank == 4 else '?' * rank!r}."
            )
        return before + filler + after


def axis_of(letter: str, layout: str, label: str) -> int:
    """Return the axis of `letter` in a layout; ArgumentError if there is none."""
    if letter not in layout:
        raise ArgumentError(
            f"{label}: expected a layout with {letter}, got {layout or 'none'}; set the layouts "
            "with .tensor().set_layout('NHWC') and .model().set_layout('NCHW')."
        )
    return layout.index(letter)


def permutation(old: str, new: str, label: str) -> tuple[int, ...]:
    """Return the index in `old` of each dimension of `new`, which has the same rank.

    Each ``?`` gets the next dimension that no letter uses.
    """
    free = [i for i, letter in enumerate(old) if letter == "?" or letter not in new]
    order = []
    for letter in new:
        at = old.index(letter) if letter != "?" and letter in old else free.pop(0) if free else -1
        if at < 0 or (letter != old[at] and "?" not in (letter, old[at])):
            raise ArgumentError(
                f"{label}: cannot convert layout {old} to {new}: it has no {letter}. Use the same "
                "letters in both."
            )
        order.append(at)
    return tuple(order)


def _dimensions(text: str) -> list[str]:
    bracketed = re.fullmatch(r"\[(.*)\]", text.strip())
    if bracketed:
        letters = [part.strip().upper() for part in bracketed[1].split(",")]
        letters = [_LETTERS.get(part, part) for part in letters]
    else:
        letters = re.findall(r"\.\.\.|.", text.strip().upper())
    if not letters or not all(re.fullmatch(r"[A-Z?]|\.\.\.", part) for part in letters):
        raise ArgumentError(
            f"layout {text!r}: expected one letter for each dimension, as in 'NHWC', '?' for any "
            "and '...' for several."
        )
    return letters
