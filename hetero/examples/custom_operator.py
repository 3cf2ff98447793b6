"""A custom operator: the fractional part of a number."""

import numpy as np

import hetero


@hetero.custom_operator("org.example::Fraction", infer=lambda x, **attributes: x)
def fraction(x, *, scale=1.0):
    """Return the fractional part of each number, scaled."""
    return ((x - np.floor(x)) * scale).astype(x.dtype)
