"""Operators that draw random numbers.

The specification leaves the generator open. A node with a seed draws the same numbers in each run,
from `RandomState`, whose stream numpy guarantees; without a seed each run draws other numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from hetero.devices.kernels.element_types import Array, Kernel, Xp, element_type
from hetero.devices.kernels.registry import op, with_attributes_of


def _generator(xp: Xp, seed: float | None) -> Any:
    """Return a generator; a seed that is no 32-bit integer is used by its float32 bits."""
    if seed is None:
        return xp.random.RandomState()
    if seed == int(seed) and 0 <= seed < 2**32:
        return xp.random.RandomState(int(seed))
    return xp.random.RandomState(struct.unpack("<I", struct.pack("<f", seed))[0])


@op("Dropout", since=(7, 10))
def dropout_7(
    xp: Xp, data: Array, *, ratio: float = 0.5, n_outputs: int = 1, version: int = 10
) -> Any:
    """Return the data unchanged, as in inference, and a mask of ones.

    The mask is bool, before opset 10 of the data's type.
    """
    mask_type = xp.bool_ if version >= 10 else data.dtype
    return (data, xp.ones(data.shape, dtype=mask_type)) if n_outputs > 1 else data


@op("Dropout", since=12, host=(1, 2))
def dropout_12(
    xp: Xp,
    data: Array,
    ratio: Array | None = None,
    training_mode: Array | None = None,
    *,
    seed: int | None = None,
    n_outputs: int = 1,
) -> Any:
    """Zero a share of `ratio` of the elements in training, and scale the others; also the mask."""
    share = 0.5 if ratio is None else float(ratio.item())
    if not 0 <= share < 1:
        raise ValueError(f"ratio: expected a number of at least 0 and below 1, got {share}")
    if training_mode is None or not training_mode.item() or share == 0:
        return dropout_7(xp, data, n_outputs=n_outputs)
    mask = _generator(xp, seed).uniform(0.0, 1.0, data.shape) >= share
    y = data * mask.astype(data.dtype) * xp.asarray(1 / (1 - share)).astype(data.dtype)
    return (y, mask) if n_outputs > 1 else y


def _normal(
    xp: Xp,
    shape: Sequence[int],
    dtype: Any,
    *,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Array:
    return _generator(xp, seed).normal(mean, scale, tuple(shape)).astype(dtype)


def _draw_uniform(
    xp: Xp,
    shape: Sequence[int],
    dtype: Any,
    *,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
) -> Array:
    return _generator(xp, seed).uniform(low, high, tuple(shape)).astype(dtype)


def _register(op_type: str, draw: Kernel) -> None:
    """Register the operator that draws an array of a shape, and its form `<op_type>Like`."""

    @op(op_type, since=1)
    @with_attributes_of(draw)
    def random(xp: Xp, *, shape: Sequence[int], dtype: int = 1, **parameters: Any) -> Array:
        return draw(xp, shape, element_type(dtype), **parameters)

    @op(f"{op_type}Like", since=1)
    @with_attributes_of(draw)
    def random_like(xp: Xp, x: Array, *, dtype: int | None = None, **parameters: Any) -> Array:
        return draw(xp, x.shape, x.dtype if dtype is None else element_type(dtype), **parameters)


_register("RandomNormal", _normal)
_register("RandomUniform", _draw_uniform)


@op("Bernoulli", since=15)
def bernoulli(xp: Xp, x: Array, *, dtype: int | None = None, seed: float | None = None) -> Array:
    """Draw 1 with the probabilities in the input, else 0."""
    to = x.dtype if dtype is None else element_type(dtype)
    draws = _generator(xp, seed).uniform(0.0, 1.0, x.shape)
    return (draws < x.astype(xp.float64)).astype(to)


@op("Multinomial", since=7)
def multinomial(
    xp: Xp, x: Array, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None
) -> Array:
    """Draw classes with unnormalised log-probabilities x (batch, classes).

    The result is (batch, sample_size), of `dtype` int32 or int64.
    """
    if x.ndim != 2 or x.shape[1] == 0:
        raise ValueError(f"log-probabilities: expected shape (batch, classes), got {x.shape}")
    batch, classes = x.shape
    logits = x.astype(xp.float64)
    weights = xp.exp(logits - xp.max(logits, axis=1, keepdims=True))
    cumulative = xp.cumsum(weights, axis=1)
    if not (cumulative[:, -1] > 0).all():
        raise ValueError("expected log-probabilities without NaN, inf or rows of -inf only")
    cumulative /= cumulative[:, -1:]
    # The distribution function of row b is shifted to b..b+1, so that one search serves all rows.
    row = xp.arange(batch)[:, None]
    draws = _generator(xp, seed).uniform(0.0, 1.0, (batch, sample_size)) + row
    samples = xp.searchsorted((cumulative + row).reshape(-1), draws.reshape(-1), side="right")
    samples = samples.reshape(draws.shape) - row * classes
    return xp.clip(samples, 0, classes - 1).astype(element_type(dtype))
