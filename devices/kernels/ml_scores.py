"""Scores of `ai.onnx.ml` models: post-transforms, and the label that goes with them."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from typing import Any

from hetero.devices.kernels.activation import sigmoid
from hetero.devices.kernels.element_types import Array, Xp
from hetero.devices.kernels.softmax import softmax

#: The domain of classical models, and its lists of numbers and names.
ML = "ai.onnx.ml"
Floats = Sequence[float]
Ints = Sequence[int]
Strings = Sequence[str]


def rows_of(xp: Xp, x: Array) -> Array:
    """Return features as rows (N, C) of floats; a vector is one row."""
    x = x if x.dtype.kind == "f" else x.astype(xp.float32)
    if x.ndim not in (1, 2):
        raise ValueError(f"features have shape {x.shape}; (C,) or (N, C) wanted")
    return x.reshape(-1, x.shape[-1])


def labels_of(xp: Xp, ints: Sequence[int] | None, strings: Sequence[str] | None) -> Array:
    """Return the class labels: int64, or strings."""
    if strings:
        return xp.asarray(strings, dtype=object)
    if not ints:
        raise ValueError("class labels are needed, as integers or as strings")
    return xp.asarray(ints, dtype=xp.int64)


def _softmax_zero(xp: Xp, x: Array) -> Array:
    """Return the softmax of what is not zero; zeros stay."""
    counts = xp.absolute(x) > 1e-7
    e = xp.where(counts, xp.exp(x - xp.max(x, axis=-1, keepdims=True)), 0)
    return e / xp.sum(e, axis=-1, keepdims=True)


def _probit(xp: Xp, x: Array) -> Array:
    """Return the normal distribution's quantile, by ONNX Runtime's (Winitzki's) inverse of erf."""
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


def transformed(xp: Xp, scores: Array, post_transform: str, dtype: Any = None) -> Array:
    """Return scores (N, K) after the post-transform, as float32 or another type."""
    return _TRANSFORMS[post_transform](xp, scores).astype(dtype or xp.float32)


def both_classes(xp: Xp, score: Array, post_transform: str, *, negated: bool) -> Array:
    """Return the scores of two classes (N, 2), given that of the second (N, 1).

    That of the first is the negative one, or else what is missing to one. As in ONNX Runtime only
    LOGISTIC, of negated scores, and PROBIT transform them.
    """
    both = xp.concatenate([-score if negated else 1 - score, score], axis=1)
    applies = post_transform == "PROBIT" or (post_transform == "LOGISTIC" and negated)
    return transformed(xp, both, post_transform if applies else "NONE")
