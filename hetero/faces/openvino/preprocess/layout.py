"""Layouts: what each dimension of a tensor means, as ``NHWC``."""

from __future__ import annotations

import re
from typing import Final

from hetero.devices.errors import ArgumentError

#: Names that may stand for a letter inside brackets.
_LONG: Final = {"BATCH": "N", "CHANNELS": "C", "DEPTH": "D", "HEIGHT": "H", "WIDTH": "W"}
_DOTS: Final = "..."


class Layout(str):
    """A layout: one letter a dimension, ``?`` for one without meaning, ``...`` for any number.

    ``NHWC``, ``NC...``, ``[batch, height, width, channels]`` and ``[N,C,?,?]`` are layouts. N is
    the batch, C are channels, D, H and W depth, height and width; other letters mean what the
    model's author says.

    Raises
    ------
    ArgumentError
        It is none.
    """

    __slots__ = ()

    def __new__(cls, layout_str: str = "...") -> Layout:
        """Read a layout."""
        dimensions = _dimensions(str(layout_str))
        letters = [d for d in dimensions if d not in ("?", _DOTS)]
        if dimensions.count(_DOTS) > 1 or len(set(letters)) < len(letters):
            raise ArgumentError(
                f"layout {layout_str!r}: each letter and '...' may be there once, as in "
                "'NHWC' or 'NC...'"
            )
        return super().__new__(cls, "".join(dimensions))

    @staticmethod
    def scalar() -> Layout:
        """Return the layout of a number."""
        return str.__new__(Layout, "")

    @property
    def empty(self) -> bool:
        """Whether no dimension means anything."""
        return not self.replace(_DOTS, "")

    def has_name(self, dimension_name: str) -> bool:
        """Return whether a dimension is called so: ``N``, ``C``, ``BATCH``, ``height``."""
        word = dimension_name.strip().upper()
        return bool(word) and _LONG.get(word, word) in self.replace(_DOTS, "")

    def get_index_by_name(self, dimension_name: str) -> int:
        """Return a dimension's position, from the end (negative) behind ``...``.

        Raises
        ------
        ArgumentError
            None is called so.
        """
        if not self.has_name(dimension_name):
            raise ArgumentError(f"layout {self}: no dimension is called {dimension_name!r}.")
        _, dots, after = self.partition(_DOTS)
        word = dimension_name.strip().upper()
        letter = _LONG.get(word, word)
        return after.index(letter) - len(after) if letter in after and dots else self.index(letter)

    def to_string(self) -> str:
        """Return the layout as text."""
        return str(self)

    def of_rank(self, rank: int, where: str) -> str:
        """Return one letter for each of `rank` dimensions; ArgumentError if it has another rank."""
        before, dots, after = self.partition(_DOTS)
        filler = "?" * (rank - len(before) - len(after)) if dots else ""
        if len(before + filler + after) != rank:
            raise ArgumentError(
                f"{where}: layout {self} has {len(before + after)} dimensions, the tensor has "
                f"{rank}; give one letter for each, as {'NHWC' if rank == 4 else '?' * rank!r}."
            )
        return before + filler + after


def axis_of(letter: str, layout: str, where: str) -> int:
    """Return where `letter` is in a layout; ArgumentError if it is not there."""
    if letter not in layout:
        raise ArgumentError(
            f"{where}: its layout is {layout or 'not known'}, without {letter}; say which "
            "dimension is which, as .tensor().set_layout('NHWC') and .model().set_layout('NCHW')."
        )
    return layout.index(letter)


def permutation(old: str, new: str, where: str) -> tuple[int, ...]:
    """Return which dimension of `old` each dimension of `new`, of the same rank, is.

    A ``?`` takes what is left, in order.
    """
    free = [i for i, letter in enumerate(old) if letter == "?" or letter not in new]
    order = []
    for letter in new:
        at = old.index(letter) if letter != "?" and letter in old else free.pop(0) if free else -1
        if at < 0 or (letter != old[at] and "?" not in (letter, old[at])):
            raise ArgumentError(
                f"{where}: layout {old} cannot become {new}: {letter} is not in it. Give both the "
                "same letters."
            )
        order.append(at)
    return tuple(order)


def _dimensions(text: str) -> list[str]:
    bracketed = re.fullmatch(r"\[(.*)\]", text.strip())
    if bracketed:
        found = [part.strip().upper() for part in bracketed[1].split(",")]
        found = [_LONG.get(part, part) for part in found]
    else:
        found = re.findall(r"\.\.\.|.", text.strip().upper())
    if not found or not all(re.fullmatch(r"[A-Z?]|\.\.\.", part) for part in found):
        raise ArgumentError(
            f"layout {text!r}: wanted one letter for each dimension, as 'NHWC', '?' for any and "
            "'...' for several."
        )
    return found
