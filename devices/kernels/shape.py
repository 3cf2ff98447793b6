"""Operators that change a tensor's shape: reshape, transpose, broadcast, depth to space.

They return views where numpy can, except Tile, DepthToSpace and SpaceToDepth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hetero.devices.kernels.axes import axes_of
from hetero.devices.kernels.element_types import Array, Xp
from hetero.devices.kernels.registry import as_inputs, op


@op("Reshape", since=5, host=(1,), additions={"allowzero": 14})
def reshape_5(xp: Xp, data: Array, shape: Array, *, allowzero: int = 0) -> Array:
    """Reshape; 0 copies the input's dimension unless `allowzero` is set, and -1 is inferred."""
    sizes: list[int] = shape.tolist()
    inferred = [i for i, size in enumerate(sizes) if size == -1]
    if len(inferred) > 1 or any(size < -1 for size in sizes):
        raise ValueError(f"shape: expected one -1 and no other negative number, got {sizes}")
    if allowzero:
        if inferred and 0 in sizes:
            raise ValueError(f"shape: expected 0 or -1 with allowzero=1, got both in {sizes}")
        return _reshape(data, sizes)
    copies = [i for i, size in enumerate(sizes) if size == 0]
    for i in copies:
        if i >= data.ndim:
            raise ValueError(f"shape: expected 0 on axes below {data.ndim} only, got {sizes}")
        sizes[i] = data.shape[i]
    if inferred:
        # Copied dimensions cancel out, so -1 can be inferred even if one of them is 0.
        divisor = math.prod(size for i, size in enumerate(sizes) if i not in copies and size != -1)
        count = math.prod(size for i, size in enumerate(data.shape) if i not in copies)
        if divisor == 0 or count % divisor:
            raise ValueError(f"shape: no size for -1 in {sizes} fits an input of {data.shape}")
        sizes[inferred[0]] = count // divisor
    return _reshape(data, sizes)


def _reshape(data: Array, shape: Sequence[int]) -> Array:
    count = math.prod(size for size in shape if size != -1)
    if data.size != count and (-1 not in shape or count == 0 or data.size % count):
        raise ValueError(
            f"shape: expected {data.size} elements, as the input of shape {data.shape}, got {shape}"
        )
    return data.reshape(shape)


@op("Flatten", since=1)
def flatten(xp: Xp, x: Array, *, axis: int = 1) -> Array:
    """Reshape to a matrix, with the axes before `axis` as rows and the others as columns."""
    if not -x.ndim <= axis <= x.ndim:
        raise IndexError(f"axis {axis} is out of range for rank {x.ndim}")
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@op("Transpose", since=1)
def transpose(xp: Xp, data: Array, *, perm: Sequence[int] | None = None) -> Array:
    """Permute the axes, or reverse them without `perm`."""
    if perm is not None and sorted(perm) != list(range(data.ndim)):
        raise ValueError(f"perm: expected a permutation of {data.ndim} axes, got {tuple(perm)}")
    return data.transpose(perm)


@op("Squeeze", since=1)
def squeeze_1(xp: Xp, data: Array, *, axes: Sequence[int] | None = None) -> Array:
    """Remove `axes`, which have size 1; without `axes`, all axes of size 1."""
    if axes is None:
        return xp.squeeze(data)
    axes = axes_of(axes, data.ndim)
    for axis in axes:
        if data.shape[axis] != 1:
            raise ValueError(f"expected size 1 on axis {axis}, got shape {data.shape}")
    return xp.squeeze(data, axes)


@op("Unsqueeze", since=1)
def unsqueeze_1(xp: Xp, data: Array, *, axes: Sequence[int]) -> Array:
    """Insert axes of size 1, which are `axes` of the output."""
    return xp.expand_dims(data, axes_of(axes, data.ndim + len(axes)))


op("Squeeze", since=13, host=(1,))(as_inputs(squeeze_1, "axes"))
op("Unsqueeze", since=13, host=(1,))(as_inputs(unsqueeze_1, "axes"))


@op("Expand", since=8, host=(1,))
def expand(xp: Xp, x: Array, shape: Array) -> Array:
    """Broadcast the input to the shape that its own shape and `shape` broadcast to."""
    return xp.broadcast_to(x, broadcast_shape(x.shape, shape.tolist()))


def broadcast_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that two shapes broadcast to."""
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b), strict=True)
    result = []
    for m, n in pairs:
        if m != n and 1 not in (m, n):
            raise ValueError(f"expected shapes that broadcast, got {tuple(a)} and {tuple(b)}")
        result.append(n if m == 1 else m)
    return tuple(result)


@op("Tile", since=6, host=(1,))
def tile(xp: Xp, x: Array, repeats: Array) -> Array:
    """Repeat the input along each of its axes."""
    counts = repeats.tolist()
    if len(counts) != x.ndim or min(counts, default=0) < 0:
        raise ValueError(f"repeats: expected {x.ndim} numbers of 0 or more, got {counts}")
    return xp.tile(x, counts)


@op("Shape", since=1, additions={"start": 15, "end": 15})
def shape_1(xp: Xp, data: Array, *, start: int = 0, end: int | None = None) -> Array:
    """Return the input's shape from `start` to `end`, int64; both are clamped to the rank."""
    return xp.asarray(data.shape[start:end], dtype=xp.int64)


@op("Size", since=1)
def size(xp: Xp, data: Array) -> Array:
    """Return the number of elements of the input, an int64 scalar."""
    return xp.asarray(data.size, dtype=xp.int64)


@op("DepthToSpace", since=1, additions={"mode": 11}, choices={"mode": ("DCR", "CRD")})
def depth_to_space_1(xp: Xp, x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    """Move channels into spatial blocks; `mode` is the order of depth, column and row."""
    n, c, h, w = _image_shape(x, blocksize)
    depth, rest = divmod(c, blocksize**2)
    if rest:
        raise ValueError(f"expected a multiple of {blocksize**2} channels, got {c}")
    if mode == "DCR":
        y = x.reshape(n, blocksize, blocksize, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, depth, blocksize, blocksize, h, w).transpose(0, 1, 4, 2, 5, 3)
    return y.reshape(n, depth, h * blocksize, w * blocksize)


@op("SpaceToDepth", since=1, additions={"mode": 28}, choices={"mode": ("DCR", "CRD")})
def space_to_depth_1(xp: Xp, x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    """Move spatial blocks into channels; `mode` is the order of depth, column and row."""
    n, c, h, w = _image_shape(x, blocksize)
    if h % blocksize or w % blocksize:
        raise ValueError(f"expected height and width divisible by {blocksize}, got {h} and {w}")
    h, w = h // blocksize, w // blocksize
    blocks = x.reshape(n, c, h, blocksize, w, blocksize)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return blocks.transpose(order).reshape(n, c * blocksize**2, h, w)


def _image_shape(x: Array, blocksize: int) -> tuple[int, int, int, int]:
    if x.ndim != 4 or blocksize < 1:
        raise ValueError(
            "expected an input of shape (N, C, H, W) and a positive blocksize, got "
            f"{x.shape} and {blocksize}"
        )
    n, c, h, w = x.shape
    return n, c, h, w
