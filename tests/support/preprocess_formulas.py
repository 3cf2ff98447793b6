"""Formulas of preprocessing steps, in numpy."""

from __future__ import annotations

import math

import numpy as np


def resize(picture: np.ndarray, algorithm: str, height: int, width: int) -> np.ndarray:
    """Resize float pixels (height, width, channels)."""
    rows = weights(algorithm, picture.shape[0], height)
    columns = weights(algorithm, picture.shape[1], width)
    return np.einsum("oh,hwc,pw->opc", rows, picture.astype(np.float64), columns)


def weights(algorithm: str, old: int, new: int) -> np.ndarray:
    """Return the weight of each old pixel in each new one; pixel centres are at halves."""
    shares = np.zeros((new, old))
    for i in range(new):
        x = (i + 0.5) * old / new - 0.5
        if algorithm == "RESIZE_NEAREST":
            parts = {math.ceil(x - 0.5): 1.0}  # halves are rounded down
        elif algorithm == "RESIZE_LINEAR":
            parts = {math.floor(x): 1 - x % 1, math.floor(x) + 1: x % 1}
        else:
            parts = {math.floor(x) + k: cubic(x - math.floor(x) - k) for k in (-1, 0, 1, 2)}
        for at, weight in parts.items():
            shares[i, min(max(at, 0), old - 1)] += weight
    return shares


def cubic(distance: float, a: float = -0.75) -> float:
    """Return Keys' cubic convolution kernel."""
    x = abs(distance)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a


def yuv_to_rgb(y: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return red, green and blue of planes (h, w), (h / 2, w / 2) and (h / 2, w / 2)."""
    c, d, e = y - 16.0, u.repeat(2, 0).repeat(2, 1) - 128.0, v.repeat(2, 0).repeat(2, 1) - 128.0
    red, green = 1.164 * c + 1.596 * e, 1.164 * c - 0.391 * d - 0.813 * e
    return np.clip(np.stack([red, green, 1.164 * c + 2.018 * d], -1), 0, 255)


def gray(rgb: np.ndarray) -> np.ndarray:
    """Convert RGB, on the last axis, to grey."""
    return 0.299 * rgb[..., 0] + 0.587 * rgb[..., 1] + 0.114 * rgb[..., 2]
