"""What stands for a tensor that a device keeps, and for one that is made of rows of others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

import numpy as np

from devices.errors import TensorLostError
from devices.model.element_type import Type
from devices.request.joined_rows import RowLayout

#: How rows lie, and of which keys they are which.
RowsOf = tuple[RowLayout, tuple[tuple[str, tuple[int, ...]], ...]]


@dataclass(eq=False, slots=True)
class Kept:
    """A tensor in a device's process; freed there once nothing here holds this any more."""

    device: str
    address: str
    key: str
    dtype: np.dtype
    shape: tuple[int, ...]
    #: Told so, by address and key.
    let_go: Callable[[str, str], None]
    nbytes: ClassVar[int] = 8

    def __del__(self) -> None:
        self.let_go(self.address, self.key)


@dataclass(slots=True)
class Joined:
    """What one device is to make of rows of what it keeps."""

    device: str
    made: dict[str, RowsOf] = field(default_factory=dict)
    nbytes: int = 0

    def add(self, kept: Kept, rows: RowsOf) -> None:
        """Have it make one more."""
        self.made[kept.key] = rows
        self.nbytes += math.prod(kept.shape) * kept.dtype.itemsize


def joined(
    key: str, parts: Sequence[tuple[Kept, Sequence[int]]], layout: RowLayout
) -> tuple[Kept, RowsOf]:
    """Return what stands for rows of tensors of one device, and what that is told."""
    first = parts[0][0]
    shape = layout.shape(first.shape, sum(len(rows) for _, rows in parts))
    kept = Kept(first.device, first.address, key, first.dtype, shape, first.let_go)
    return kept, (layout, tuple((old.key, tuple(rows)) for old, rows in parts))


@cache
def dtype_of(kind: str) -> np.dtype:
    """Return the dtype of an element type, as messages have it."""
    return Type(kind).to_dtype()


def lost_tensor(port: str, kept: Kept) -> TensorLostError:
    """Return the error of a request that cannot have an input, as who kept it is gone."""
    return TensorLostError(
        f"input {port!r} was kept by device {kept.device}, which is gone, and the tensor with it. "
        "Make it anew; of a state, reset_state().",
        port=port,
        device=kept.device,
    )
