"""Scores of `ai.onnx.ml` models: features, labels and post-transforms."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from typing import Any

from hetero.devices.kernels.activation import sigmoid
from hetero.devices.kernels.element_types import Array, Xp
from hetero.devices.kernels.softmax import softmax

#: The domain of classical models.
ML = "ai.onnx.ml"
Floats = Sequence[float]
Ints = Sequence[int]
Strings = Sequence[str]


def rows_of(xp: Xp, x: Array) -> Array:
    """Return features as rows (N, C) of floats; a vector becomes one row."""
    x = x if x.dtype.kind == "f" else x.astype(xp.float32)
    if x.ndim not in (1, 2):
        raise ValueError(f"features: expected shape (C,) or (N, C), got {x.shape}")
    return x.reshape(-1, x.shape[-1])


def labels_of(xp: Xp, ints: Sequence[int] | None, strings: Sequence[str] | None) -> Array:
    """Return the class labels, int64 or strings."""
    if strings:
        return xp.asarray(strings, dtype=object)
    if not ints:
        raise ValueError("expected class labels, as integers or as strings; got none")
    return xp.asarray(ints, dtype=xp.int64)


def _softmax_zero(xp: Xp, x: Array) -> Array:
    """Return the softmax of the elements that are not zero, and zero for the others."""
    is_nonzero = xp.absolute(x) > 1e-7
    e = xp.where(is_nonzero, xp.exp(x - xp.max(x, axis=-1, keepdims=True)), 0)
    return e / xp.sum(e, axis=-1, keepdims=True)


def _probit(xp: Xp, x: Array) -> Array:
    """Return the normal quantile by Winitzki's inverse of erf, which ONNX Runtime uses."""
    x = 2 * x - 1
    log = xp.log((1 - x) * (1 + x))
    half = 2 / (pi * 0.147) + 0.5 * log
    return xp.sqrt(2) * xp.sign(x) * xp.sqrt(-half + xp.sqrt(half * half - log / 0.147))


_TRANSFORMS = {
    "NONE": lambda xp, x: x,
    "LOGISTIC": sigmoid,
    "SOFTMAX": lambda xp, x: softmax(xp, x, 1),
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": _probit,
}


POST_TRANSFORMS = tuple(_TRANSFORMS)


def apply_post_transform(xp: Xp, scores: Array, post_transform: str, dtype: Any = None) -> Array:
    """Apply a post-transform to scores (N, K); the result is float32 unless `dtype` is given."""
    return _TRANSFORMS[post_transform](xp, scores).astype(dtype or xp.float32)


def both_classes(xp: Xp, score: Array, post_transform: str, *, negated: bool) -> Array:
    """Return the scores of two classes (N, 2) from the score of the second (N, 1).

    The score of the first is the negative score or, unless `negated`, 1 minus the score. As in ONNX
    Runtime, only PROBIT and LOGISTIC with `negated` transform them.
    """
    both = xp.concatenate([-score if negated else 1 - score, score], axis=1)
    applies = post_transform == "PROBIT" or (post_transform == "LOGISTIC" and negated)
    return apply_post_transform(xp, both, post_transform if applies else "NONE")
