"""Rows of the table of operators: ONNX Runtime's own ones."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from hetero.devices.kernels.microsoft import MICROSOFT
from tests.support.operator_rows import Random, Row, f32, floats, integers, scalar, shaped

_row: Final = partial(Row, domain=MICROSOFT, rtol=1e-4, atol=1e-5)
#: Quantised results are equal.
_quantized: Final = partial(Row, rtol=1e-5, atol=0)


def _bytes(*shape: int) -> Random:
    return integers(0, 256, *shape, dtype=np.uint8)


def _weights(*shape: int) -> Random:
    """Return weights of seven bits, whose products ONNX Runtime sums exactly on every processor."""
    return integers(-64, 64, *shape, dtype=np.int8)


_X: Final = (_bytes(2, 3, 4, 4), scalar(0.21), scalar(100, np.uint8))
_OTHER: Final = (_bytes(2, 3, 4, 4), scalar(0.53), scalar(7, np.uint8))
_TO: Final = _OTHER[1:]
#: Scale and zero point of results between 0 and 1.
_SMALL: Final = (scalar(1 / 256), scalar(0, np.uint8))
_M: Final = (_bytes(5, 8), *_X[1:])
_COLUMNS: Final = (f32(0.25, 0.5, 1), np.zeros(3, np.int8))
_BIAS: Final = integers(-900, 900, 3, dtype=np.int32)
_QUANTIZED: Final[tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...]] = (
    ("QLinearAdd QLinearMul", (*_X, *_OTHER, *_TO), {}),
    ("QLinearConcat", (*_TO, *_X, *_OTHER, *_X), {"axis": 1}),
    ("QLinearLeakyRelu", (*_X, *_TO), {"alpha": 0.5}),
    ("QLinearGlobalAveragePool", (*_X, *_TO), {}),
    ("QLinearAveragePool", (*_X, *_TO), {"kernel_shape": [2, 2], "pads": [1, 0, 0, 1]}),
    ("QLinearSigmoid", (*_X, *_SMALL), {}),
    ("QLinearSoftmax", (*_X, *_SMALL), {"axis": -1, "opset": 17}),
    ("QGemm", (*_M, _weights(8, 3), *_COLUMNS, _BIAS, *_TO), {}),
    ("QGemm", (*_M, _weights(3, 8), *_COLUMNS, _BIAS), {"transB": 1}),
    ("QGemm", (*_M, _weights(8, 3), *_COLUMNS, _BIAS), {"alpha": 0.5}),
    ("QGemm", (*_M, _weights(8, 3), *_COLUMNS, None, *_TO), {}),
)

MICROSOFT_OPERATORS: Final = (
    _row("Gelu QuickGelu", [floats(2, 3, 5)]),
    _row("BiasGelu FastGelu", shaped(((2, 3, 5), (5,)))),
    _row("FastGelu", [floats(2, 3, 5)]),
    _row("SkipLayerNormalization", shaped(((2, 3, 4), (2, 3, 4), (4,), (4,), (4,)))),
    _row("SkipSimplifiedLayerNormalization", shaped(((2, 3, 4), (2, 3, 4), (4,), (4,)))),
    _row("FusedMatMul", shaped(((2, 4, 3), (2, 4, 5))), [{"transA": 1, "alpha": 0.25}]),
    _row(
        "FusedGemm",
        shaped(((3, 4), (4, 5), (5,))),
        {"activation": ["Relu", "LeakyRelu"], "activation_alpha": [0.3]},
    ),
    _row(
        "FusedConv",
        shaped(((2, 2, 7, 8), (3, 2, 3, 2), (3,))),
        {"pads": [[1, 0, 1, 1]], "activation": ["Relu", "Sigmoid"]},
    ),
    *(
        _quantized(op_types, [inputs], [attributes], domain=MICROSOFT)
        for op_types, inputs, attributes in _QUANTIZED
    ),
    _quantized("QLinearMatMul", [(*_X, *_OTHER, *_TO)]),
)
