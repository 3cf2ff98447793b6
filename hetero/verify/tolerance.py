"""Tolerance of a model's values, measured on the reference with rounding noise.

Whatever a unit in the last place moves is noise: a vendor that rounds differently may move it too.
A quantised or chaotic model moves much, and gets a large tolerance.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hetero.devices.model.model import Model, Node
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
#: Values of at least this magnitude may be a filling, such as -1e4 or -1e9 under a mask, if ...
_LEAST_FILLING: Final = 1e4
#: ... they are equal up to this, relative to the value, and ...
_FILLING_SPREAD: Final = 1e-6
#: ... all others are smaller by this factor.
_FILLING_FACTOR: Final = 100
#: Fraction of the integers that may differ by one if floats were rounded to them: a vendor may
#: round a tie, or a value next to one, to the other side.
_TIED_FRACTION: Final = 0.02
#: Operators that round floats to integers or to steps.
_ROUNDING_OPERATORS: Final = frozenset(
    {
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
#: Operators that round floats if the result has another type than these.
_CASTS: Final = frozenset({"Cast", "CastLike"})
_WIDE_FLOATS: Final = frozenset({"double", "float", "float16", "bfloat16"})
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


def rounded_values(model: Model) -> frozenset[str]:
    """Return the values that depend on floats rounded to integers or to steps."""
    rounded: set[str] = set()
    for node in model.nodes:
        if _is_rounding(node, model) or not rounded.isdisjoint(node.reads):
            rounded.update(node.writes)
    return frozenset(rounded)


def _is_rounding(node: Node, model: Model) -> bool:
    if node.op_type in _CASTS:
        source, target = (model.spec(v[0]).element_type for v in (node.inputs, node.outputs))
        is_exact = "int" in source or source == "bool" or target in _WIDE_FLOATS
        return not is_exact
    return node.op_type in _ROUNDING_OPERATORS or node.op_type.startswith("QLinear")


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
        # Results that are not finite, and all that follows from them, are the model's business.
        is_finite = np.isfinite(wide) & np.isfinite(noisy.astype(np.float64))
        magnitudes = np.abs(wide[is_finite])
        is_computed = ~_is_filling(magnitudes)
        scale = float(magnitudes[is_computed].max(initial=0.0))
        changes = np.abs(noisy.astype(np.float64)[is_finite] - wide[is_finite])
        noise = float(changes[is_computed].max(initial=0.0))
        rtol = max(RTOL, _UNITS * unit)
        atol = max(_SCALE_TOLERANCE, unit) * scale + _NOISE_FACTOR * noise + _UNITS_OF_ONE * unit
        if not is_finite.all():
            actual = np.where(is_finite, actual, expected).astype(actual.dtype)
    elif expected.dtype.kind in "iu":
        noise = _largest_element(np.abs(noisy.astype(np.float64) - expected.astype(np.float64)))
        atol = min(_NOISE_FACTOR * noise, 2.0**62)
    differences = [d for d in differences_of(name, expected, actual, rtol, atol) if not d.agrees]
    return tuple(d for d in differences if not _is_tie(d, expected, noisy, rounds))


def _is_filling(magnitudes: np.ndarray) -> np.ndarray:
    """Return which values are a constant far beyond all others, which has no rounding errors."""
    largest = magnitudes.max(initial=0.0)
    is_filling = np.asarray(magnitudes >= largest * (1 - _FILLING_SPREAD))
    is_far = largest >= max(
        _LEAST_FILLING, _FILLING_FACTOR * magnitudes[~is_filling].max(initial=0.0)
    )
    is_repeated = 1 < np.count_nonzero(is_filling) < magnitudes.size
    return is_filling if is_far and is_repeated else np.zeros_like(is_filling)


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
