"""Whether a model keeps the rows of a batch apart, so that requests can be joined on axis 0.

Each value is the same for every request (`SAME`), or has one row for each row of the inputs, made
of that row alone (`ROWS`), or is made of the batch's size (`SIZES`). A node passes only if it is
known what becomes of rows in it: a sum over the batch would mix requests, without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from math import prod
from typing import Any, Final

import numpy as np

from hetero.devices.errors import PropertyError
from hetero.devices.model.constant_nodes import lift_constant_nodes
from hetero.devices.model.model import Model, Node

#: The size of axis 0 while types are inferred.
_BATCH: Final = "rows of the batch"


class _Kind(Enum):
    SAME = "the same for each request"
    ROWS = "rows"
    SIZES = "made of the batch's size"


class _MixedRowsError(Exception):
    """Why requests cannot be joined."""


def require_joinable(model: Model, size: int) -> None:
    """Raise PropertyError, with the reason, where requests cannot be joined."""
    if why := why_not_joined(model):
        raise PropertyError(
            f"model {model.name!r}: AUTO_BATCH_SIZE={size} joins requests on axis 0, but {why}. "
            "Set it to 0 for this model, or ALLOW_AUTO_BATCHING to False.",
            property="AUTO_BATCH_SIZE",
        )


def why_not_joined(model: Model) -> str | None:
    """Return what keeps requests of a model from being joined on axis 0; None for nothing."""
    for port in model.inputs:
        if not port.is_tensor or not port.shape or isinstance(port.shape[0], int):
            return f"input {port.name!r} ({port}) has no batch of any size on axis 0"
    try:
        _Rows(model).check()
    except _MixedRowsError as error:
        return str(error)
    return None


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise _MixedRowsError(why)


class _Rows:
    """What becomes of rows, node by node."""

    def __init__(self, model: Model) -> None:
        self._model: Final = lift_constant_nodes(model).replace(
            inputs=[replace(p, shape=(_BATCH, *(p.shape or ())[1:])) for p in model.inputs],
            outputs=[replace(port, shape=None) for port in model.outputs],
            value_info=(),
        )
        self._kinds: dict[str, _Kind] = dict.fromkeys((p.name for p in model.inputs), _Kind.ROWS)
        #: Values that are all sizes of a value with rows: the batch's is the first.
        self._shapes: set[str] = set()

    def check(self) -> None:
        """Raise _MixedRowsError where an output would not be each request's own rows."""
        for node in self._model.nodes:
            kinds = {self.kind(value) for value in node.reads}
            if kinds <= {_Kind.SAME}:
                continue
            try:
                kind = self._kind_made(node, kinds)
            except _MixedRowsError as error:
                raise _MixedRowsError(f"node {node.name!r} ({node.op_type}) {error}") from None
            self._kinds.update(dict.fromkeys(node.writes, kind))
        for port in self._model.outputs:
            kind = self.kind(port.name)
            _require(kind is _Kind.ROWS, f"output {port.name!r} is {kind.value}")

    def kind(self, value: str) -> _Kind:
        """Return what a value is."""
        return self._kinds.get(value, _Kind.SAME)

    def has_rows(self, value: str) -> bool:
        """Whether a value has the batch's rows."""
        return self.kind(value) is _Kind.ROWS

    def shape(self, value: str) -> tuple[Any, ...]:
        """Return a value's shape."""
        shape = self._model.spec(value).shape
        if shape is None:
            raise _MixedRowsError(f"has {value!r}, whose rank is not known")
        return shape

    @property
    def opset(self) -> int:
        """The version of the standard operators."""
        return self._model.opset_imports.get("", 1)

    def rank(self, node: Node) -> int:
        """Return the rank of a node's first input."""
        return len(self.shape(node.inputs[0]))

    def array(self, value: str) -> np.ndarray:
        """Return a constant's value."""
        if value not in self._model.constants:
            raise _MixedRowsError(f"takes {value!r}, which is not a constant")
        return np.asarray(self._model.constants[value].array)

    def option(self, node: Node, name: str, place: int, default: Any = None) -> Any:
        """Return what is an attribute in some versions of an operator, an input in others."""
        if len(node.inputs) > place and node.inputs[place]:
            return self.array(node.inputs[place]).ravel().tolist()
        return node.attributes.get(name, default)

    def apart(self, node: Node, axes: Sequence[int]) -> None:
        """Check that a node works on axes of its first input other than the batch's."""
        rank = max(self.rank(node), 1)
        _require(all(axis % rank for axis in axes), "works on axis 0")

    def is_single(self, value: str, rank: int) -> bool:
        """Whether a value without rows is broadcast along axis 0 of others with this rank."""
        shape = self.shape(value)
        return not self.has_rows(value) and (len(shape) < rank or shape[0] == 1)

    def _kind_made(self, node: Node, kinds: set[_Kind]) -> _Kind:
        """Return what a node makes of what is not the same for each request."""
        _require(not node.domain and not node.captures, "is not known to keep rows apart")
        if node.op_type == "Shape":
            if node.attributes.get("start", 0) > 0:
                return _Kind.SAME
            self._shapes.add(node.outputs[0])
            return _Kind.SIZES
        if _Kind.ROWS not in kinds and node.op_type in _OF_SIZES:
            return _Kind.SAME if self._is_of_other_axes(node) else _Kind.SIZES
        may_take_sizes = node.op_type in ("Reshape", "Expand", "ConstantOfShape")
        _require(_Kind.SIZES not in kinds or may_take_sizes, "computes with the size of the batch")
        _require(node.op_type in _RULES, "is not known to keep rows apart")
        _RULES[node.op_type](self, node)
        return _Kind.ROWS

    def _is_of_other_axes(self, node: Node) -> bool:
        """Whether a node takes sizes of other axes only: joined requests agree in those."""
        if node.inputs[0] not in self._shapes:
            return False
        count = self.shape(node.inputs[0])[0]
        if node.op_type == "Gather" and node.inputs[1] in self._model.constants:
            return bool((self.array(node.inputs[1]) % count).all())
        if node.op_type == "Slice":
            start = self.option(node, "starts", 1)[0]
            return bool(start % count > 0 and self.option(node, "steps", 4, [1])[0] > 0)
        return False


# Rules: what a node has to be like for its outputs to have rows.


def _elementwise(rows: _Rows, node: Node) -> None:
    _broadcast(rows, node.reads, max(len(rows.shape(value)) for value in node.reads))


def _broadcast(rows: _Rows, values: Iterable[str], rank: int) -> None:
    """Check that values are broadcast to a rank without rows being repeated or added."""
    for value in values:
        if rows.has_rows(value):
            _require(len(rows.shape(value)) == rank, f"broadcasts {value!r} over axis 0")
        else:
            _require(rows.is_single(value, rank), f"takes {value!r}, which has rows of its own")


def _by_first(rows: _Rows, node: Node) -> None:
    """Rows come with the first input alone."""
    for value in node.reads[1:]:
        _require(rows.kind(value) is _Kind.SAME, f"takes rows as its parameter {value!r}")


def _max_pool(rows: _Rows, node: Node) -> None:
    _require(len(node.writes) == 1, "counts places through the whole batch")


def _batch_normalization(rows: _Rows, node: Node) -> None:
    _by_first(rows, node)
    old = rows.opset < 14 and len(node.writes) > 1
    _require(not old and not node.attributes.get("training_mode"), "takes means over the batch")


def _dropout(rows: _Rows, node: Node) -> None:
    training = rows.option(node, "training_mode", 2, [False])[0]
    old = rows.opset < 7 and not node.attributes.get("is_test")
    _require(not old and not training, "drops at random")


def _resize(rows: _Rows, node: Node) -> None:
    _by_first(rows, node)
    place = 1 if node.op_type == "Upsample" or len(node.inputs) == 2 else 2
    scales = rows.option(node, "scales", place) or []
    _require(len(scales) == rows.rank(node), "has no constant scales for all axes")
    _require(scales[0] == 1, "scales axis 0")


def _pad(rows: _Rows, node: Node) -> None:
    _by_first(rows, node)
    pads = rows.option(node, "pads", 1, node.attributes.get("paddings"))  # so called in opset 1
    axes = rows.option(node, "axes", 3, range(rows.rank(node)))
    padded = [
        a
        for a, before, after in zip(axes, pads, pads[len(axes) :], strict=False)
        if before or after
    ]
    rows.apart(node, padded)


def _transpose(rows: _Rows, node: Node) -> None:
    permutation = node.attributes.get("perm", range(rows.rank(node))[::-1])
    _require(permutation[0] == 0, "moves axis 0")


def _flatten(rows: _Rows, node: Node) -> None:
    _require(node.attributes.get("axis", 1) % rows.rank(node) == 1, "joins axis 0 with others")


def _unsqueeze(rows: _Rows, node: Node) -> None:
    axes = rows.option(node, "axes", 1)
    rank = rows.rank(node) + len(axes)
    _require(all(axis % rank for axis in axes), "puts an axis before the batch")


def _slice(rows: _Rows, node: Node) -> None:
    _by_first(rows, node)
    axes = rows.option(node, "axes", 3)
    rows.apart(node, range(len(rows.option(node, "starts", 1))) if axes is None else axes)


def _of_axes(rows: _Rows, node: Node) -> None:
    """It works on some axes, and on all by default."""
    axes = rows.option(node, "axes", 1)
    if axes or not node.attributes.get("noop_with_empty_axes"):
        _require(bool(axes), "works on all axes")
        rows.apart(node, axes)


def _of_axis(rows: _Rows, node: Node) -> None:
    """It works on one axis, an attribute."""
    _by_first(rows, node)
    default = _DEFAULT_AXES[node.op_type]
    if node.op_type in ("Softmax", "LogSoftmax", "Hardmax") and rows.opset < 13:
        default = 1
    rows.apart(node, [node.attributes.get("axis", default)])


def _cumsum(rows: _Rows, node: Node) -> None:
    rows.apart(node, rows.array(node.inputs[1]).ravel().tolist())


def _of_rows(rows: _Rows, node: Node) -> None:
    """Each input has the batch's rows, and it works on another axis."""
    for value in node.reads:
        _require(rows.has_rows(value), f"takes {value!r}, which is {rows.kind(value).value}")
    rows.apart(node, [node.attributes.get("axis", 0)])


def _gather(rows: _Rows, node: Node) -> None:
    data, indices = node.inputs
    if not rows.has_rows(data):
        _require(not node.attributes.get("axis", 0), "puts the batch behind other axes")
        return
    _require(not rows.has_rows(indices), "takes of rows by rows")
    rows.apart(node, [node.attributes.get("axis", 0)])


def _matmul(rows: _Rows, node: Node) -> None:
    factors = (node.inputs[0], node.inputs[3 if node.op_type == "QLinearMatMul" else 1])
    for value in node.reads:
        is_factor = value in factors
        _require(is_factor or not rows.has_rows(value), f"takes rows as its parameter {value!r}")
    rank = max(len(rows.shape(value)) for value in factors)
    if rank > 2:
        _broadcast(rows, factors, rank)
    else:
        _require(len(rows.shape(factors[0])) == 2, "multiplies over axis 0")
        _require(not rows.has_rows(factors[1]), "multiplies rows with each other")


def _gemm(rows: _Rows, node: Node) -> None:
    first, second, *third = node.inputs
    _require(not rows.has_rows(second), "multiplies rows with each other")
    _require(not node.attributes.get("transA"), "transposes the batch")
    for value in filter(None, third):
        fits = rows.is_single(value, 2) or len(rows.shape(value)) == 2
        alone = rows.is_single(value, 2) or rows.has_rows(value)
        _require(fits and alone, f"takes {value!r}, which has rows of its own")
    _require(rows.has_rows(first), "adds rows to what has none")


def _reshape(rows: _Rows, node: Node) -> None:
    """Axis 0 stays: then each row's elements stay together."""
    _require(rows.has_rows(node.inputs[0]), "makes rows of what has none")
    before, after = rows.shape(node.inputs[0])[1:], rows.shape(node.outputs[0])
    if after[:1] == (_BATCH,):
        return
    sizes = (*before, *after[1:])
    known = bool(after) and all(isinstance(size, int) for size in sizes)
    kept = known and not isinstance(after[0], int) and prod(before) == prod(after[1:]) > 0
    _require(kept, f"gives {node.outputs[0]!r}, whose axis 0 may not be the batch")


def _expand(rows: _Rows, node: Node) -> None:
    data, given = node.inputs[0], rows.shape(node.outputs[0])
    has_all = rows.has_rows(data) and len(rows.shape(data)) == len(given)
    fits = has_all or rows.is_single(data, len(given))
    _require(fits and given[:1] == (_BATCH,), "does not expand to a row for each of the batch")


def _constant_of_shape(rows: _Rows, node: Node) -> None:
    _require(rows.shape(node.outputs[0])[:1] == (_BATCH,), "does not make a row for each")


def _tile(rows: _Rows, node: Node) -> None:
    _require(rows.array(node.inputs[1]).ravel()[0] == 1, "repeats axis 0")


#: Operators that make sizes of sizes.
_SIZES: Final = """
    Gather Slice Concat Unsqueeze Squeeze Cast Identity Reshape Add Sub Mul Div Mod Min Max Equal
    Where
"""
#: Operators that work element by element, and broadcast.
_ELEMENTWISE: Final = """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr
    BitwiseXor Cast CastLike Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater
    GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max
    Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin
    Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
"""
#: Operators of rows with parameters.
_BY_FIRST: Final = """
    AveragePool Conv ConvInteger ConvTranspose DepthToSpace DequantizeLinear
    GlobalAveragePool GlobalLpPool GlobalMaxPool GroupNormalization InstanceNormalization LRN
    LpPool QLinearConv QuantizeLinear SpaceToDepth
"""
#: Operators of some axes.
_REDUCING: Final = """
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum ReduceSumSquare Squeeze
"""
_OF_SIZES: Final = frozenset(_SIZES.split())
_DEFAULT_AXES: Final = {
    "Softmax": -1,
    "LogSoftmax": -1,
    "Hardmax": -1,
    "LayerNormalization": -1,
    "RMSNormalization": -1,
    "LpNormalization": -1,
    "ArgMax": 0,
    "ArgMin": 0,
    "Split": 0,
    "TopK": -1,
}

_RULES: Final[dict[str, Callable[[_Rows, Node], None]]] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _elementwise),
    **dict.fromkeys(_BY_FIRST.split(), _by_first),
    **dict.fromkeys(_REDUCING.split(), _of_axes),
    **dict.fromkeys(_DEFAULT_AXES, _of_axis),
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), _matmul),
    **dict.fromkeys(("Concat", "GatherElements"), _of_rows),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "BatchNormalization": _batch_normalization,
    "ConstantOfShape": _constant_of_shape,
    "CumSum": _cumsum,
    "Dropout": _dropout,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Gemm": _gemm,
    "MaxPool": _max_pool,
    "Pad": _pad,
    "Reshape": _reshape,
    "Slice": _slice,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
