"""Operators that draw random numbers.

A seeded node draws the same numbers in each run: from `RandomState`, whose stream numpy has frozen.
The specification leaves the generator open; without a seed each run draws others.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from hetero.devices.kernels.element_types import Array, Kernel, Xp, element_type
from hetero.devices.kernels.registry import op, taking


def _generator(xp: Xp, seed: float | None) -> Any:
    """Return a generator of the seed: a whole one as it is, others by their float32 bits."""
    if seed is None:
        return xp.random.RandomState()
    if seed == int(seed) and 0 <= seed < 2**32:
        return xp.random.RandomState(int(seed))
    return xp.random.RandomState(struct.unpack("<I", struct.pack("<f", seed))[0])


@op("Dropout", since=(7, 10))
def dropout_7(
    xp: Xp, data: Array, *, ratio: float = 0.5, n_outputs: int = 1, version: int = 10
) -> Any:
    """Return the data, and a mask that keeps all, before opset 10 of its type: both only infer."""
    kept = xp.bool_ if version >= 10 else data.dtype
    return (data, xp.ones(data.shape, dtype=kept)) if n_outputs > 1 else data


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
    """Zero a share of `ratio` of the elements and scale the others, in training; and the mask."""
    share = 0.5 if ratio is None else float(ratio.item())
    if not 0 <= share < 1:
        raise ValueError(f"ratio {share} is not from 0 up to, but not including, 1")
    if training_mode is None or not training_mode.item() or share == 0:
        return dropout_7(xp, data, n_outputs=n_outputs)
    kept = _generator(xp, seed).uniform(0.0, 1.0, data.shape) >= share
    scaled = data * kept.astype(data.dtype) * xp.asarray(1 / (1 - share)).astype(data.dtype)
    return (scaled, kept) if n_outputs > 1 else scaled


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


def _uniform(
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
    """Register what draws an array of a shape, and what draws one like another."""

    @op(op_type, since=1)
    @taking(draw)
    def drawn(xp: Xp, *, shape: Sequence[int], dtype: int = 1, **law: Any) -> Array:
        return draw(xp, shape, element_type(dtype), **law)

    @op(f"{op_type}Like", since=1)
    @taking(draw)
    def drawn_like(xp: Xp, x: Array, *, dtype: int | None = None, **law: Any) -> Array:
        return draw(xp, x.shape, x.dtype if dtype is None else element_type(dtype), **law)


_register("RandomNormal", _normal)
_register("RandomUniform", _uniform)


@op("Bernoulli", since=15)
def bernoulli(xp: Xp, x: Array, *, dtype: int | None = None, seed: float | None = None) -> Array:
    """Draw 1 with the probability that the input gives, else 0."""
    wanted = x.dtype if dtype is None else element_type(dtype)
    draws = _generator(xp, seed).uniform(0.0, 1.0, x.shape)
    return (draws < x.astype(xp.float64)).astype(wanted)


@op("Multinomial", since=7)
def multinomial(
    xp: Xp, x: Array, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None
) -> Array:
    """Draw classes by their log-probabilities x (batch, classes), which need not be normalised.

    The result is (batch, sample_size), of `dtype` int32 or int64.
    """
    if x.ndim != 2 or x.shape[1] == 0:
        raise ValueError(f"log-probabilities of shape {x.shape} are not (batch, classes)")
    batch, classes = x.shape
    logits = x.astype(xp.float64)
    likely = xp.exp(logits - xp.max(logits, axis=1, keepdims=True))
    upto = xp.cumsum(likely, axis=1)
    if not (upto[:, -1] > 0).all():
        raise ValueError("a row of log-probabilities makes no class possible, or holds NaN or inf")
    upto /= upto[:, -1:]
    # Row b's distribution function runs from b to b + 1, so that one search serves all rows.
    row = xp.arange(batch)[:, None]
    draws = _generator(xp, seed).uniform(0.0, 1.0, (batch, sample_size)) + row
    drawn = xp.searchsorted((upto + row).reshape(-1), draws.reshape(-1), side="right")
    drawn = drawn.reshape(draws.shape) - row * classes
    return xp.clip(drawn, 0, classes - 1).astype(element_type(dtype))
