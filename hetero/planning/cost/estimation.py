"""Cost estimation: operations and bytes of a node, and the time that a device needs for them.

Nodes that were not measured get an estimated time. The speed of a device is fitted to its measured
nodes, or a default if it has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from hetero.devices.model.model import Model, Node
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.measure.sample_inputs import OPEN_DIMENSION


class Work(NamedTuple):
    """The work of one run of a node: arithmetic operations, and bytes read and written."""

    operations: float
    nbytes: float


class Speed(NamedTuple):
    """The speed of a device: seconds of a node as a linear function of its work."""

    start_s: float
    s_per_operation: float
    s_per_byte: float

    def __call__(self, work: Work) -> float:
        """Return the seconds that the device needs for a node's work."""
        return self.start_s + work.operations * self.s_per_operation + work.nbytes * self.s_per_byte


#: A slow core: 20 GFLOP/s, 5 GB/s, and 5 microseconds per node.
DEFAULT_SPEED: Final = Speed(5e-6, 1 / 2e10, 1 / 5e9)


def with_input_shapes(model: Model, shapes: Mapping[str, Sequence[int]]) -> Model:
    """Return the model with static input shapes, so that inner shapes can be inferred."""
    if all(port.is_static or port.name not in shapes for port in model.inputs):
        return model
    ports = [
        TensorSpec(p.name, p.type, tuple(shapes[p.name])) if p.name in shapes else p
        for p in model.inputs
    ]
    return model.replace(inputs=ports)


def value_nbytes(spec: TensorSpec) -> int:
    """Return the bytes of a value; open dimensions count as 1, other values than tensors as 0."""
    if (nbytes := spec.nbytes) is not None:
        return nbytes
    return TensorSpec(spec.name, spec.type, _shape(spec)).nbytes or 0


def count_work(model: Model, node: Node) -> Work:
    """Count the work of a node from the inferred shapes of its inputs and outputs."""
    inputs = [model.spec(name) for name in node.inputs]
    outputs = [model.spec(name) for name in node.writes]
    nbytes = float(sum(value_nbytes(s) for s in (*inputs, *outputs)))
    output_size = sum(map(_size, outputs))
    operator = "" if node.domain else node.op_type
    if (count_operations := _OPERATION_COUNTS.get(operator)) is not None:
        return Work(float(count_operations(node, [_shape(s) for s in inputs], output_size)), nbytes)
    # Other operators perform one operation per element of their first input or their outputs.
    input_size = _size(inputs[0]) if inputs else 0
    return Work(float(max(output_size, input_size)), nbytes)


def fit_speed(samples: Iterable[tuple[Work, float]]) -> Speed:
    """Fit the speed of a device to the work and seconds of measured nodes.

    With too few samples, returns the default speed, scaled to the samples' sum.
    """
    measured = [(work, seconds) for work, seconds in samples if seconds > 0]
    if len(measured) < 6:
        estimate_s = sum(DEFAULT_SPEED(work) for work, _ in measured)
        ratio = sum(seconds for _, seconds in measured) / estimate_s if estimate_s else 1.0
        return Speed(*(coefficient * ratio for coefficient in DEFAULT_SPEED))
    table = np.array([(1.0, *work) for work, _ in measured])
    target = np.array([seconds for _, seconds in measured])
    # Weighting by the root balances many small nodes against the few large ones that dominate.
    weight = 1 / np.sqrt(target)
    coefficients = nonnegative_least_squares(table * weight[:, None], target * weight)
    return Speed(*map(float, coefficients))


def nonnegative_least_squares(table: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Solve a least-squares problem with non-negative coefficients; columns may have any scale."""
    # Imported here because scipy takes half a second to import, and most users never plan.
    from scipy.optimize import nnls

    scale = np.maximum(np.abs(table).max(axis=0, initial=0.0), 1e-300)
    solution: np.ndarray = nnls(table / scale, target)[0] / scale
    return solution


def _shape(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else OPEN_DIMENSION for d in spec.shape or ())


def _size(spec: TensorSpec) -> int:
    return math.prod(_shape(spec))


_Shapes = Sequence[tuple[int, ...]]


def _convolution_operations(node: Node, shapes: _Shapes, output_size: int) -> float:
    return 2 * output_size * math.prod(shapes[1][1:])


def _transposed_convolution_operations(node: Node, shapes: _Shapes, output_size: int) -> float:
    return 2 * math.prod(shapes[0]) * math.prod(shapes[1][1:])


def _product_operations(node: Node, shapes: _Shapes, output_size: int) -> float:
    left = shapes[0] or (1,)
    return 2 * output_size * left[0 if node.attributes.get("transA", 0) else -1]


def _recurrent_operations(node: Node, shapes: _Shapes, output_size: int) -> float:
    return 2 * math.prod(shapes[0][:2]) * sum(map(math.prod, shapes[1:3]))


def _attention_operations(node: Node, shapes: _Shapes, output_size: int) -> float:
    return 4 * output_size * (shapes[1][-2] if len(shapes[1]) > 1 else 1)


#: Operator with multiply-accumulates -> number of operations, from the node, the input shapes and
#: the number of output elements.
_OPERATION_COUNTS: Final[Mapping[str, Callable[[Node, _Shapes, int], float]]] = {
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv"), _convolution_operations),
    "ConvTranspose": _transposed_convolution_operations,
    **dict.fromkeys(
        ("MatMul", "MatMulInteger", "QLinearMatMul", "Einsum", "Gemm"), _product_operations
    ),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent_operations),
    "Attention": _attention_operations,
}
