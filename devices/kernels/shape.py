"""Operators that give a tensor another shape: reshape, transpose, broadcast, blocks to depth.

All but Tile, DepthToSpace and SpaceToDepth return views where numpy can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hetero.devices.kernels.axes import axes_of
from hetero.devices.kernels.element_types import Array, Xp
from hetero.devices.kernels.registry import as_inputs, op


@op("Reshape", since=5, host=(1,), added={"allowzero": 14})
def reshape_5(xp: Xp, data: Array, shape: Array, *, allowzero: int = 0) -> Array:
    """Reshape; 0 copies the input's dimension, or stays with `allowzero`; one -1 is inferred."""
    sizes: list[int] = shape.tolist()
    inferred = [i for i, size in enumerate(sizes) if size == -1]
    if len(inferred) > 1 or any(size < -1 for size in sizes):
        raise ValueError(f"shape {sizes} may hold one -1 and no other negative dimension")
    if allowzero:
        if inferred and 0 in sizes:
            raise ValueError(f"shape {sizes} holds both 0 and -1, so -1 cannot be inferred")
        return _reshaped(data, sizes)
    copied = [i for i, size in enumerate(sizes) if size == 0]
    for i in copied:
        if i >= data.ndim:
            raise ValueError(f"shape {sizes} copies dimension {i} of an input of rank {data.ndim}")
        sizes[i] = data.shape[i]
    if inferred:
        # Copied dimensions cancel, so that -1 is known even where one of them is 0.
        wanted = math.prod(size for i, size in enumerate(sizes) if i not in copied and size != -1)
        given = math.prod(size for i, size in enumerate(data.shape) if i not in copied)
        if wanted == 0 or given % wanted:
            raise ValueError(f"{data.shape} cannot be reshaped to {sizes}: -1 has no whole value")
        sizes[inferred[0]] = given // wanted
    return _reshaped(data, sizes)


def _reshaped(data: Array, shape: Sequence[int]) -> Array:
    known = math.prod(size for size in shape if size != -1)
    if data.size != known and (-1 not in shape or known == 0 or data.size % known):
        raise ValueError(f"{data.size} elements of shape {data.shape} do not fill shape {shape}")
    return data.reshape(shape)


@op("Flatten", since=1)
def flatten(xp: Xp, x: Array, *, axis: int = 1) -> Array:
    """Reshape to a matrix: dimensions before `axis` are rows, the rest columns."""
    if not -x.ndim <= axis <= x.ndim:
        raise IndexError(f"axis {axis} is out of range for rank {x.ndim}")
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@op("Transpose", since=1)
def transpose(xp: Xp, data: Array, *, perm: Sequence[int] | None = None) -> Array:
    """Permute the dimensions; without `perm`, reverse them."""
    if perm is not None and sorted(perm) != list(range(data.ndim)):
        raise ValueError(f"perm {tuple(perm)} is not a permutation of the axes of rank {data.ndim}")
    return data.transpose(perm)


@op("Squeeze", since=1)
def squeeze_1(xp: Xp, data: Array, *, axes: Sequence[int] | None = None) -> Array:
    """Remove the dimensions of size 1, or those that `axes` names."""
    if axes is None:
        return xp.squeeze(data)
    removed = axes_of(axes, data.ndim)
    for axis in removed:
        if data.shape[axis] != 1:
            raise ValueError(f"axis {axis} of shape {data.shape} is not of size 1")
    return xp.squeeze(data, removed)


@op("Unsqueeze", since=1)
def unsqueeze_1(xp: Xp, data: Array, *, axes: Sequence[int]) -> Array:
    """Insert dimensions of size 1 so that the output has them at `axes`."""
    return xp.expand_dims(data, axes_of(axes, data.ndim + len(axes)))


op("Squeeze", since=13, host=(1,))(as_inputs(squeeze_1, "axes"))
op("Unsqueeze", since=13, host=(1,))(as_inputs(unsqueeze_1, "axes"))


@op("Expand", since=8, host=(1,))
def expand(xp: Xp, x: Array, shape: Array) -> Array:
    """Broadcast the input and `shape` against each other."""
    return xp.broadcast_to(x, broadcast_shape(x.shape, shape.tolist()))


def broadcast_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that two shapes broadcast to, in both directions."""
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b), strict=True)
    result = []
    for m, n in pairs:
        if m != n and 1 not in (m, n):
            raise ValueError(f"shapes {tuple(a)} and {tuple(b)} do not broadcast")
        result.append(n if m == 1 else m)
    return tuple(result)


@op("Tile", since=6, host=(1,))
def tile(xp: Xp, x: Array, repeats: Array) -> Array:
    """Repeat the input along each of its dimensions."""
    counts = repeats.tolist()
    if len(counts) != x.ndim or min(counts, default=0) < 0:
        raise ValueError(f"repeats {counts} must hold {x.ndim} counts, none of them negative")
    return xp.tile(x, counts)


@op("Shape", since=1, added={"start": 15, "end": 15})
def shape_1(xp: Xp, data: Array, *, start: int = 0, end: int | None = None) -> Array:
    """Return the input's shape from `start` to `end`, int64; both are clamped to the rank."""
    return xp.asarray(data.shape[start:end], dtype=xp.int64)


@op("Size", since=1)
def size(xp: Xp, data: Array) -> Array:
    """Return how many elements the input has, an int64 scalar."""
    return xp.asarray(data.size, dtype=xp.int64)


@op("DepthToSpace", since=1, added={"mode": 11}, choices={"mode": ("DCR", "CRD")})
def depth_to_space_1(xp: Xp, x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    """Move depth into blocks of space; `mode` orders depth, column, row."""
    n, c, h, w = _image_shape(x, blocksize)
    depth, rest = divmod(c, blocksize**2)
    if rest:
        raise ValueError(f"{c} channels are not a multiple of blocksize {blocksize} squared")
    if mode == "DCR":
        y = x.reshape(n, blocksize, blocksize, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, depth, blocksize, blocksize, h, w).transpose(0, 1, 4, 2, 5, 3)
    return y.reshape(n, depth, h * blocksize, w * blocksize)


@op("SpaceToDepth", since=1, added={"mode": 28}, choices={"mode": ("DCR", "CRD")})
def space_to_depth_1(xp: Xp, x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    """Move blocks of space into depth; `mode` orders depth, column, row."""
    n, c, h, w = _image_shape(x, blocksize)
    if h % blocksize or w % blocksize:
        raise ValueError(f"height {h} and width {w} must be multiples of blocksize {blocksize}")
    h, w = h // blocksize, w // blocksize
    blocks = x.reshape(n, c, h, blocksize, w, blocksize)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return blocks.transpose(order).reshape(n, c * blocksize**2, h, w)


def _image_shape(x: Array, blocksize: int) -> tuple[int, int, int, int]:
    if x.ndim != 4 or blocksize < 1:
        raise ValueError(
            f"blocks need an input (N, C, H, W) and a positive blocksize, not {x.shape} "
            f"and {blocksize}"
        )
    n, c, h, w = x.shape
    return n, c, h, w
