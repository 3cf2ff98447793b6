"""How much work a node is: operations and bytes counted from shapes, and a guess of its seconds.

What no device has measured gets its time from here: a device's speed is fitted to the nodes that
it did measure, or assumed where it measured none.
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
    """Arithmetic operations, and bytes read and written, of one run of a node."""

    operations: float
    nbytes: float


class Speed(NamedTuple):
    """Seconds of a node: ``start_s + operations * s_per_operation + nbytes * s_per_byte``."""

    start_s: float
    s_per_operation: float
    s_per_byte: float

    def __call__(self, work: Work) -> float:
        """Seconds of so much work."""
        return self.start_s + work.operations * self.s_per_operation + work.nbytes * self.s_per_byte


#: A modest core: 20 thousand million operations and 5 GB a second, 5 microseconds a node.
ASSUMED_SPEED: Final = Speed(5e-6, 1 / 2e10, 1 / 5e9)


def with_shapes(model: Model, shapes: Mapping[str, Sequence[int]]) -> Model:
    """Return the model with its inputs' shapes given, so that inner shapes can be inferred."""
    if all(port.is_static or port.name not in shapes for port in model.inputs):
        return model
    ports = [
        TensorSpec(p.name, p.type, tuple(shapes[p.name])) if p.name in shapes else p
        for p in model.inputs
    ]
    return model.replace(inputs=ports)


def value_nbytes(spec: TensorSpec) -> int:
    """Bytes of a value; open dimensions count as 1, values that are not tensors as nothing."""
    if (known := spec.nbytes) is not None:
        return known
    return TensorSpec(spec.name, spec.type, _shape(spec)).nbytes or 0


def node_work(model: Model, node: Node) -> Work:
    """Count a node's work from the inferred shapes of what it reads and writes."""
    inputs = [model.spec(name) for name in node.inputs]
    outputs = [model.spec(name) for name in node.writes]
    nbytes = float(sum(value_nbytes(s) for s in (*inputs, *outputs)))
    made = sum(map(_size, outputs))
    operator = "" if node.domain else node.op_type
    if (count := _PRODUCTS.get(operator)) is not None:
        return Work(float(count(node, [_shape(s) for s in inputs], made)), nbytes)
    # Others look at each element that they read or make.
    read = _size(inputs[0]) if inputs else 0
    return Work(float(max(made, read)), nbytes)


def fit_speed(samples: Iterable[tuple[Work, float]]) -> Speed:
    """Fit a device's speed to the work and seconds of measured nodes: least relative error.

    Where there are too few to fit, it is the assumed speed, scaled to the samples' sum.
    """
    known = [(work, seconds) for work, seconds in samples if seconds > 0]
    if len(known) < 6:
        guess = sum(ASSUMED_SPEED(work) for work, _ in known)
        ratio = sum(seconds for _, seconds in known) / guess if guess else 1.0
        return Speed(*(figure * ratio for figure in ASSUMED_SPEED))
    table = np.array([(1.0, *work) for work, _ in known])
    target = np.array([seconds for _, seconds in known])
    # Small nodes are many and large ones decide: the root weighs both.
    weight = 1 / np.sqrt(target)
    found = nonnegative(table * weight[:, None], target * weight)
    return Speed(*map(float, found))


def nonnegative(table: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Least squares with coefficients of at least 0, of columns of any scale."""
    # Here, because most users never plan, and scipy takes half a second to import.
    from scipy.optimize import nnls

    scale = np.maximum(np.abs(table).max(axis=0, initial=0.0), 1e-300)
    found: np.ndarray = nnls(table / scale, target)[0] / scale
    return found


def _shape(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else OPEN_DIMENSION for d in spec.shape or ())


def _size(spec: TensorSpec) -> int:
    return math.prod(_shape(spec))


_Shapes = Sequence[tuple[int, ...]]


def _convolution(node: Node, shapes: _Shapes, made: int) -> float:
    return 2 * made * math.prod(shapes[1][1:])


def _transposed(node: Node, shapes: _Shapes, made: int) -> float:
    return 2 * math.prod(shapes[0]) * math.prod(shapes[1][1:])


def _product(node: Node, shapes: _Shapes, made: int) -> float:
    left = shapes[0] or (1,)
    return 2 * made * left[0 if node.attributes.get("transA", 0) else -1]


def _recurrent(node: Node, shapes: _Shapes, made: int) -> float:
    return 2 * math.prod(shapes[0][:2]) * sum(map(math.prod, shapes[1:3]))


def _attention(node: Node, shapes: _Shapes, made: int) -> float:
    return 4 * made * (shapes[1][-2] if len(shapes[1]) > 1 else 1)


#: Operators that multiply and add -> how many operations, of the shapes that they read and the
#: elements that they make.
_PRODUCTS: Final[Mapping[str, Callable[[Node, _Shapes, int], float]]] = {
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv"), _convolution),
    "ConvTranspose": _transposed,
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul", "Einsum", "Gemm"), _product),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    "Attention": _attention,
}
