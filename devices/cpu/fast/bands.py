"""Bands of an output's rows: what is computed at once, to stay in cache from step to step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from hetero.devices.interpreter.calls import Scratch


def bands(images: int, height: int, most: int, unit: int = 1) -> Iterator[tuple[slice, slice]]:
    """Yield images and output rows: whole images, or a multiple of `unit` rows of one.

    None has more than `most` rows, which is a multiple of `unit`; the first is the largest.
    """
    if most >= height:
        each = most // height
        for first in range(0, images, each):
            yield slice(first, min(images, first + each)), slice(0, height)
        return
    rows = -(-height // -(-height // most))
    rows = -(-rows // unit) * unit
    for image in range(images):
        for first in range(0, height, rows):
            yield slice(image, image + 1), slice(first, min(height, first + rows))


class BandScratch:
    """Memory that each band uses again: the same arrays, or the beginnings of them, in turn.

    `is_new` tells whether the latest was not there for an earlier band.
    """

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._arrays: list[np.ndarray] = []
        self._next = 0
        self.is_new = True

    def __call__(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Return an array that is no larger than an earlier band's in its turn."""
        self.is_new = self._next == len(self._arrays)
        if self.is_new:
            self._arrays.append(self._scratch((prod(shape),), dtype))
        array = self._arrays[self._next][: prod(shape)].reshape(shape)
        self._next += 1
        return array

    def rewind(self) -> None:
        """Begin with another band."""
        self._next = 0
