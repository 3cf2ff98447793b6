"""Winograd's convolution of 3x3 kernels: fewer products, for tiles of 2x2 or 4x4 outputs.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015); the matrices are made as
Cook and Toom do, from points chosen for small errors (Barabasz and others, "Error Analysis and
Improving the Accuracy of Winograd Convolution for Deep Neural Networks", 2018). A tile's two axes
are transformed at once, by the Kronecker product of one axis' matrix with itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache, partial

import numpy as np

from hetero.devices.cpu.fast.bands import BandScratch
from hetero.devices.cpu.fast.channels_last import windows
from hetero.devices.interpreter.calls import Call, copy_call

#: Outputs along an axis of a tile -> the points, beside infinity.
_POINTS = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(2, 3), Fraction(-2, 3), Fraction(3, 2), Fraction(-3, 2)),
}
#: Weights of the kernel along an axis.
_KERNEL = 3
#: Bytes of a block of tiles, in all its forms, beside the weights' own.
_BLOCK_BYTES = 1 << 20
_MOST_BLOCK_BYTES = 4 << 20


def _times(polynomial: list[Fraction], root: Fraction) -> list[Fraction]:
    """Return the polynomial, lowest power first, times (x - root)."""
    raised, scaled = [Fraction(0), *polynomial], [*(root * c for c in polynomial), Fraction(0)]
    return [a - b for a, b in zip(raised, scaled, strict=True)]


@cache
def _matrices(tile: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the transforms of outputs, kernel and inputs along one axis."""
    points, size = _POINTS[tile], tile + _KERNEL - 1
    outputs, kernel, inputs = (np.zeros((n, m)) for n, m in ((tile, size), (size, 3), (size, size)))
    for i, point in enumerate(points):
        others = [p for p in points if p != point]
        polynomial, divisor = [Fraction(1)], Fraction(1)
        for other in others:
            polynomial, divisor = _times(polynomial, other), divisor * (point - other)
        outputs[:, i] = [float(point**k) for k in range(tile)]
        kernel[i] = [float(point**k / divisor) for k in range(_KERNEL)]
        inputs[i, :-1] = [float(c) for c in polynomial]
    outputs[-1, -1] = kernel[-1, -1] = 1
    polynomial = [Fraction(1)]
    for point in points:
        polynomial = _times(polynomial, point)
    inputs[-1] = [float(c) for c in polynomial]
    return outputs, kernel, inputs


@cache
def _transforms(tile: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return the transforms of inputs and outputs, both axes at once."""
    outputs, _, inputs = _matrices(tile)
    return np.kron(inputs, inputs).astype(dtype), np.kron(outputs, outputs).astype(dtype)


def prepare(w: np.ndarray, tile: int) -> np.ndarray:
    """Return weights (M, C, 3, 3) as `tile_calls` takes them: ((tile + 2)², C, M)."""
    _, kernel, _ = _matrices(tile)
    u = np.einsum("ij,mcjk,lk->ilcm", kernel, w.astype(np.float64), kernel, optimize=True)
    return np.ascontiguousarray(u.reshape(-1, *u.shape[2:]).astype(w.dtype))


def best_tile(spatial: Sequence[int], c: int, m: int, itemsize: int) -> int:
    """Return the tile for an output of this size: 4, 2, or 0 where columns cost less.

    Large tiles want many of them, for each product then has few rows; and transformed weights
    should not outgrow the caches, nor memory (they are 4 and 1.8 times the kernel's).
    """
    if min(c, m) < 24:
        return 0
    tiles = {tile: -(-spatial[0] // tile) * -(-spatial[1] // tile) for tile in _POINTS}
    nbytes = {tile: (tile + 2) ** 2 * c * m * itemsize for tile in _POINTS}
    if tiles[4] >= 36 and nbytes[4] <= 10 << 20:
        return 4
    return 2 if tiles[2] >= 40 or (tiles[2] >= 16 and nbytes[2] <= 4 << 20) else 0


def tile_rows(u: np.ndarray, across: int) -> int:
    """Return how many rows of tiles, `across` in each, are convolved at once."""
    size, c, m = u.shape
    limit = min(max(_BLOCK_BYTES, 2 * u.nbytes), _MOST_BLOCK_BYTES)
    return int(max(1, limit // (size * across * (c + m) * u.itemsize)))


def tile_calls(
    scratch: BandScratch, u: np.ndarray, tile: int, x: np.ndarray, y: np.ndarray
) -> Iterator[Call]:
    """Yield the calls that convolve contiguous x (N, H, W, C), whose tiles are whole, into y."""
    size, c, m = u.shape
    edge = tile + _KERNEL - 1
    n, down, across = len(x), -(-y.shape[1] // tile), -(-y.shape[2] // tile)
    of_inputs, of_outputs = _transforms(tile, y.dtype)
    # Tiles, transformed tiles, products and outputs: each is made of the one before it.
    count = n * down * across
    one = scratch((size * max(c, m) * count,), x.dtype)
    other = scratch((max(size * c, tile * tile * m) * count,), x.dtype)
    read, sums = one[: size * count * c], other[: size * count * c].reshape(size, -1)
    products = one[: size * count * m].reshape(size, count, m)
    block = other[: tile * tile * count * m].reshape(tile * tile, -1)
    tiles = windows(x, (edge, edge), (tile, tile), (1, 1), (down, across))
    tiles = tiles.transpose(3, 4, 0, 1, 2, 5)
    yield copy_call(read.reshape(tiles.shape), tiles)
    yield partial(np.matmul, of_inputs, read.reshape(size, -1), sums)
    yield partial(np.matmul, sums.reshape(size, count, c), u, products)
    yield partial(np.matmul, of_outputs, products.reshape(size, -1), block)
    yield from _put_calls(block.reshape(tile, tile, n, down, across, m), y)


def _put_calls(tiles: np.ndarray, y: np.ndarray) -> Iterator[Call]:
    """Yield the calls that write tiles (tile, tile, N, down, across, M) to their places in y."""
    tile, _, n, down, across, m = tiles.shape
    if y.shape[1:3] == (down * tile, across * tile):
        to = y.reshape(n, down, tile, across, tile, m)
        yield copy_call(to, tiles.transpose(2, 3, 0, 4, 1, 5))
        return
    for i in range(tile):
        for j in range(tile):
            part = y[:, i::tile, j::tile]
            yield copy_call(part, tiles[i, j, :, : part.shape[1], : part.shape[2]])
