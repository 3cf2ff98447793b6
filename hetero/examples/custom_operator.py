"""An operator of one's own: the fraction of a number."""

import numpy as np

import hetero


@hetero.custom_operator("org.example::Fraction", infer=lambda x, **attributes: x)
def fraction(x, *, scale=1.0):
    """Return each number's fraction, scaled."""
    return ((x - np.floor(x)) * scale).astype(x.dtype)
