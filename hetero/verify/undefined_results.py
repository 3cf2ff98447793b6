"""Inputs for which ONNX defines no result, so that devices may differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.program import Value
from hetero.verify.float_values import is_float


def undefined_reason(model: Model, values: Mapping[str, Value]) -> str | None:
    """Return why a node of the model has no defined result for its inputs, or None.

    `values`: the reference's values, and the constants are those of the model.
    """
    all_values = {n: c.array for n, c in model.constants.items()} | dict(values)
    for node in model.nodes:
        inputs = [all_values.get(name) for name in node.inputs]
        if any(is_float(v) and not np.isfinite(np.asarray(v, np.float64)).all() for v in inputs):
            return f"{node.name!r} reads values that are not finite"
        check = (
            _CHECKS.get(node.op_type) if not node.domain else _MICROSOFT_CHECKS.get(node.op_type)
        )
        if check is not None and (reason := check(node, inputs, all_values)):
            return f"{node.name!r}: {reason}"
    return None


_Check = Callable[[Node, list[Value], Mapping[str, Value]], str | None]


def _cast(node: Node, inputs: list[Value], values: Mapping[str, Value]) -> str | None:
    result = values.get(node.outputs[0])
    if not is_float(inputs[0]) or result is None or result.dtype.kind not in "iu":
        return None
    info = np.iinfo(result.dtype)
    wide = np.asarray(inputs[0], np.float64)
    is_inside = (wide > float(info.min) - 1) & (wide < float(info.max) + 1)
    return None if is_inside.all() else "the cast of a float outside the type's range"


def _divide(node: Node, inputs: list[Value], values: Mapping[str, Value]) -> str | None:
    if inputs[1] is None or inputs[1].dtype.kind not in "iu":
        return None
    if not np.all(inputs[1]):
        return "division of an integer by zero"
    if inputs[0] is None or inputs[0].dtype.kind != "i" or not inputs[0].size:
        return None
    overflows = np.iinfo(inputs[0].dtype).min == inputs[0].min() and -1 in inputs[1]
    return "division of the smallest integer by -1" if overflows else None


def _shift(node: Node, inputs: list[Value], values: Mapping[str, Value]) -> str | None:
    if inputs[1] is None or not inputs[1].size:
        return None
    return "shift by the type's width" if inputs[1].max() >= inputs[1].dtype.itemsize * 8 else None


def _power(node: Node, inputs: list[Value], values: Mapping[str, Value]) -> str | None:
    base, exponent = inputs[:2]
    if base is None or base.dtype.kind not in "iu":
        return None
    with np.errstate(all="ignore"):
        wide = np.asarray(base, np.float64) ** np.asarray(exponent, np.float64)
    is_inside = np.isfinite(wide) & (np.abs(wide) < float(np.iinfo(base.dtype).max))
    return None if is_inside.all() else "the power of an integer outside the type's range"


def _quantize(node: Node, inputs: list[Value], values: Mapping[str, Value]) -> str | None:
    positions = (1, 4, 6) if node.op_type.startswith("QLinear") else (1,)
    scales = [inputs[p] for p in positions if p < len(inputs) and inputs[p] is not None]
    is_positive = all((np.asarray(scale, np.float64) > 0).all() for scale in scales)
    return None if is_positive else "a scale that is not positive"


def _window(node: Node, inputs: list[Value], values: Mapping[str, Value]) -> str | None:
    """Windows larger than the padded data: runtimes round the number of windows to 0 or 1."""
    data = inputs[0]
    if not isinstance(data, np.ndarray):
        return None
    weights = inputs[1] if len(inputs) > 1 else None
    is_large = _is_large_window(node, data.shape, None if weights is None else weights.shape)
    return "a window larger than the data" if is_large else None


def _is_large_window(
    node: Node, data_shape: Sequence[int], weights_shape: Sequence[int] | None
) -> bool:
    attributes = node.attributes
    if attributes.get("auto_pad", "NOTSET") != "NOTSET":
        return False
    sizes = np.array(data_shape[2:])
    kernel = np.array(attributes.get("kernel_shape") or (weights_shape or ())[2:])
    pads = np.array(attributes.get("pads") or [0] * 2 * sizes.size).reshape(2, -1).sum(axis=0)
    extents = (kernel - 1) * np.array(attributes.get("dilations") or [1] * sizes.size) + 1
    return bool(np.any(extents > sizes + pads))


def has_large_window(model: Model) -> bool:
    """Return whether a pool or a convolution has a window larger than its data.

    Windows count whose data have an inferred static shape.
    """
    for node in model.nodes:
        if node.domain or _CHECKS.get(node.op_type) is not _window:
            continue
        specs = [model.spec(name) for name in node.inputs[:2]]
        if all(spec.is_static for spec in specs):
            data, *weights = (tuple(n for n in s.shape or () if isinstance(n, int)) for s in specs)
            if _is_large_window(node, data, weights[0] if weights else None):
                return True
    return False


def _reflection(node: Node, inputs: list[Value], values: Mapping[str, Value]) -> str | None:
    if node.attributes.get("mode") != "reflect" or inputs[0] is None:
        return None
    pads = inputs[1] if len(inputs) > 1 else np.asarray(node.attributes.get("pads", ()))
    axes = inputs[3] if len(inputs) > 3 else None
    if pads is None:
        return None
    sizes = np.asarray(inputs[0].shape)[... if axes is None else axes]
    return "a reflection beyond the data" if np.any(pads >= np.tile(sizes, 2)) else None


def _sequence_lengths(node: Node, inputs: list[Value], values: Mapping[str, Value]) -> str | None:
    lengths = inputs[4] if len(inputs) > 4 else None
    return None if lengths is None or np.all(lengths) else "a sequence without steps"


def _mel_weights(node: Node, inputs: list[Value], values: Mapping[str, Value]) -> str | None:
    if any(value is None for value in inputs[1:5]):
        return None
    length, rate, low, high = (float(np.asarray(value, np.float64)) for value in inputs[1:5])
    is_valid = length >= 2 and 0 <= low < high <= rate / 2
    return None if is_valid else "frequencies outside the spectrum"


def _padded_tokens(node: Node, inputs: list[Value], values: Mapping[str, Value]) -> str | None:
    lengths, total = inputs[5], inputs[6]
    if lengths is None or total is None:
        return None
    if node.attributes.get("sliding_window_cache") and np.any(lengths + 1 != inputs[3].shape[2]):
        return "rows after the last token of a limited cache"
    return "tokens after the end of a sequence" if np.any(lengths + 1 < total) else None


#: Operator -> check of its inputs; it returns a reason or None.
_CHECKS: Final[Mapping[str, _Check]] = {
    "Cast": _cast,
    "CastLike": _cast,
    "Div": _divide,
    "Mod": _divide,
    "BitShift": _shift,
    "Pow": _power,
    "MelWeightMatrix": _mel_weights,
    "Pad": _reflection,
    **dict.fromkeys(("AveragePool", "Conv", "LpPool", "MaxPool"), _window),
    "RNN": _sequence_lengths,
    "GRU": _sequence_lengths,
    "LSTM": _sequence_lengths,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _quantize,
    "QLinearConv": _quantize,
    "QLinearMatMul": _quantize,
}
#: The same for operators of com.microsoft.
_MICROSOFT_CHECKS: Final[Mapping[str, _Check]] = {"GroupQueryAttention": _padded_tokens}
