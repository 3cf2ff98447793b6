"""Tolerance of a model's values, measured on the reference with rounding noise.

Whatever a unit in the last place moves is noise: a vendor that rounds differently may move it too.
A quantised or chaotic model moves much, and gets a large tolerance.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hetero.devices.model.model import Model
from hetero.devices.plugin.program import Value
from hetero.verify.difference import RTOL, Difference, differences_of
from hetero.verify.float_values import is_float

#: Tolerance of an element relative to the largest element of its tensor: terms of that size may
#: have cancelled, and vendors approximate functions such as Tanh.
_SCALE_TOLERANCE: Final = 1e-4
#: Absolute tolerance in units in the last place of 1: operators subtract values of about 1.
_UNITS_OF_ONE: Final = 4
#: Multiple of the measured noise that counts as noise: the sums inside an operator also round.
_NOISE_FACTOR: Final = 16
#: Relative tolerance in units in the last place, for types coarser than float32.
_UNITS: Final = 16
#: Fraction of the integers that may differ by one if floats were rounded to them: a vendor may
#: round a tie, or a value next to one, to the other side.
_TIED_FRACTION: Final = 0.02
#: Operators that round floats to integers or to steps.
_ROUNDING_OPERATORS: Final = frozenset(
    {
        "Cast",
        "CastLike",
        "Ceil",
        "ConvInteger",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "Floor",
        "MatMulInteger",
        "QLinearConv",
        "QLinearMatMul",
        "QuantizeLinear",
        "Resize",
        "Round",
    }
)
#: Unit in the last place of single precision, relative to the value.
_SINGLE_UNIT: Final = 2.0**-23
#: Unit in the last place of coarser types, relative to the value.
_COARSE_UNITS: Final = {
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8e4m3fn": 2.0**-3,
    "float8e4m3fnuz": 2.0**-3,
    "float8e5m2": 2.0**-2,
    "float8e5m2fnuz": 2.0**-2,
}
#: Values of the property INFERENCE_PRECISION_HINT -> element types.
_PRECISIONS: Final = {"f16": "float16", "bf16": "bfloat16", "fp16": "float16"}


def unit_of(model: Model, precision_hint: str = "") -> float:
    """Return the coarsest unit in the last place of the model's floats and of the device.

    `precision_hint`: the device's INFERENCE_PRECISION_HINT; empty for none.
    """
    values = (value for node in model.nodes for value in (*node.reads, *node.writes))
    types: set[str] = {model.spec(value).element_type for value in values}
    types.add(_PRECISIONS.get(precision_hint.lower(), ""))
    return max(_COARSE_UNITS.get(name, _SINGLE_UNIT) for name in types)


def is_rounding(model: Model) -> bool:
    """Return whether a node of the model rounds floats to integers or to steps."""
    return any(
        node.op_type in _ROUNDING_OPERATORS or node.op_type.startswith("QLinear")
        for node in model.nodes
    )


def beyond_noise(
    name: str, expected: Value, shaken: Value, actual: Value, *, unit: float, rounds: bool
) -> tuple[Difference, ...]:
    """Return the differences between the reference's value and a vendor's that are not noise.

    `shaken`: the reference's value with rounding noise; None if it is not known.
    `unit`: unit in the last place of the computation.
    `rounds`: whether the computation rounds floats to integers or steps.
    """
    if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
        return tuple(d for d in differences_of(name, expected, actual) if not d.agrees)
    noisy = expected if shaken is None else shaken
    if noisy.shape != expected.shape:
        return ()  # the shape itself depends on the noise
    atol, rtol = 0.0, 0.0
    if is_float(expected) and is_float(actual) and expected.shape == actual.shape:
        wide = expected.astype(np.float64)
        is_finite = np.isfinite(wide)
        scale = float(np.abs(wide[is_finite]).max(initial=0.0))
        noise = _largest_element(np.abs(noisy.astype(np.float64)[is_finite] - wide[is_finite]))
        rtol = max(RTOL, _UNITS * unit)
        atol = max(_SCALE_TOLERANCE, unit) * scale + _NOISE_FACTOR * noise + _UNITS_OF_ONE * unit
        # Results that are not finite, and all that follows from them, are the model's business.
        if not is_finite.all():
            actual = np.where(is_finite, actual, expected).astype(actual.dtype)
    elif expected.dtype.kind in "iu":
        noise = _largest_element(np.abs(noisy.astype(np.float64) - expected.astype(np.float64)))
        atol = min(_NOISE_FACTOR * noise, 2.0**62)
    found = [d for d in differences_of(name, expected, actual, rtol, atol) if not d.agrees]
    return tuple(d for d in found if not _is_tie(d, expected, noisy, rounds))


def _is_tie(difference: Difference, expected: np.ndarray, noisy: np.ndarray, rounds: bool) -> bool:
    """Return whether rounding explains a difference.

    Few integers may differ, each by one; and about as many truth values as noise changes.
    """
    if expected.dtype.kind == "b" or expected.dtype.hasobject:
        changed = int(np.count_nonzero(noisy != expected))
        return difference.differing <= _NOISE_FACTOR * changed
    if expected.dtype.kind not in "iu" or not rounds:
        return False
    allowed = max(1, int(_TIED_FRACTION * difference.size))
    return difference.max_abs <= 1 and difference.differing <= allowed


def _largest_element(array: np.ndarray) -> float:
    """Return the largest element; infinite if one is not finite."""
    if not array.size:
        return 0.0
    return float(array.max()) if np.isfinite(array).all() else float("inf")
