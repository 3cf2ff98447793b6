"""Batchability: whether the rows of a batch are independent, so that requests can be batched.

Each value is the same for every request (`SAME`), has one row per row of the inputs, computed from
that row alone (`ROWS`), or depends on the batch size (`SIZES`). Only operators with a known rule
are accepted: a sum over the batch, for example, would mix requests without an error.
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

#: Symbolic size of axis 0 during type inference.
_BATCH: Final = "rows of the batch"


class _ValueKind(Enum):
    SAME = "the same for each request"
    ROWS = "rows"
    SIZES = "made of the batch's size"


class _NotBatchableError(Exception):
    """Reason why requests cannot be batched."""


def require_batchable(model: Model, size: int) -> None:
    """Raise PropertyError, with the reason, if requests of a model cannot be batched."""
    if reason := why_not_batchable(model):
        raise PropertyError(
            f"model {model.name!r}: AUTO_BATCH_SIZE={size} batches requests on axis 0, but "
            f"{reason}. Set it to 0 for this model, or ALLOW_AUTO_BATCHING to False.",
            property="AUTO_BATCH_SIZE",
        )


def why_not_batchable(model: Model) -> str | None:
    """Return the reason why requests of a model cannot be batched on axis 0, or None."""
    for port in model.inputs:
        if not port.is_tensor or not port.shape or isinstance(port.shape[0], int):
            return f"input {port.name!r} ({port}) has no open batch axis 0"
    try:
        _RowAnalysis(model).check()
    except _NotBatchableError as error:
        return str(error)
    return None


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise _NotBatchableError(reason)


class _RowAnalysis:
    """Analysis of a model, node by node: the kind of each value."""

    def __init__(self, model: Model) -> None:
        self._model: Final = lift_constant_nodes(model).replace(
            inputs=[replace(p, shape=(_BATCH, *(p.shape or ())[1:])) for p in model.inputs],
            outputs=[replace(port, shape=None) for port in model.outputs],
            value_info=(),
        )
        self._kinds: dict[str, _ValueKind] = dict.fromkeys(
            (p.name for p in model.inputs), _ValueKind.ROWS
        )
        #: Values with the full shape of a value with rows; their first element is the batch size.
        self._full_shapes: set[str] = set()

    def check(self) -> None:
        """Raise _NotBatchableError if an output does not consist of independent rows."""
        for node in self._model.nodes:
            kinds = {self.kind(value) for value in node.reads}
            if kinds <= {_ValueKind.SAME}:
                continue
            try:
                kind = self._output_kind(node, kinds)
            except _NotBatchableError as error:
                raise _NotBatchableError(f"node {node.name!r} ({node.op_type}) {error}") from None
            self._kinds.update(dict.fromkeys(node.writes, kind))
        for port in self._model.outputs:
            kind = self.kind(port.name)
            _require(kind is _ValueKind.ROWS, f"output {port.name!r} is {kind.value}")

    def kind(self, value: str) -> _ValueKind:
        """Return the kind of a value."""
        return self._kinds.get(value, _ValueKind.SAME)

    def has_rows(self, value: str) -> bool:
        """Return whether a value has one row per row of the batch."""
        return self.kind(value) is _ValueKind.ROWS

    def shape(self, value: str) -> tuple[Any, ...]:
        """Return the shape of a value."""
        shape = self._model.spec(value).shape
        if shape is None:
            raise _NotBatchableError(f"has {value!r}, whose rank is not known")
        return shape

    @property
    def opset(self) -> int:
        """The version of the standard operators."""
        return self._model.opset_imports.get("", 1)

    def rank(self, node: Node) -> int:
        """Return the rank of the first input of a node."""
        return len(self.shape(node.inputs[0]))

    def array(self, value: str) -> np.ndarray:
        """Return the data of a constant."""
        if value not in self._model.constants:
            raise _NotBatchableError(f"takes {value!r}, which is not a constant")
        return np.asarray(self._model.constants[value].array)

    def attribute_or_constant(self, node: Node, name: str, index: int, default: Any = None) -> Any:
        """Return a parameter that is an attribute or an input, depending on the opset version."""
        if len(node.inputs) > index and node.inputs[index]:
            return self.array(node.inputs[index]).ravel().tolist()
        return node.attributes.get(name, default)

    def check_axes(self, node: Node, axes: Sequence[int]) -> None:
        """Check that a node operates on other axes of its first input than the batch axis."""
        rank = max(self.rank(node), 1)
        _require(all(axis % rank for axis in axes), "operates on axis 0")

    def is_single(self, value: str, rank: int) -> bool:
        """Return whether a value without rows is broadcast along axis 0 of values of a rank."""
        shape = self.shape(value)
        return not self.has_rows(value) and (len(shape) < rank or shape[0] == 1)

    def _output_kind(self, node: Node, kinds: set[_ValueKind]) -> _ValueKind:
        """Return the kind of a node's outputs, for inputs that differ between requests."""
        _require(not node.domain and not node.captures, "is not known to keep rows apart")
        if node.op_type == "Shape":
            if node.attributes.get("start", 0) > 0:
                return _ValueKind.SAME
            self._full_shapes.add(node.outputs[0])
            return _ValueKind.SIZES
        if _ValueKind.ROWS not in kinds and node.op_type in _SIZE_OPERATORS:
            return _ValueKind.SAME if self._selects_other_axes(node) else _ValueKind.SIZES
        may_take_sizes = node.op_type in ("Reshape", "Expand", "ConstantOfShape")
        _require(
            _ValueKind.SIZES not in kinds or may_take_sizes, "computes with the size of the batch"
        )
        _require(node.op_type in _RULES, "is not known to keep rows apart")
        _RULES[node.op_type](self, node)
        return _ValueKind.ROWS

    def _selects_other_axes(self, node: Node) -> bool:
        """Return whether a node selects sizes of other axes, which are equal in a batch."""
        if node.inputs[0] not in self._full_shapes:
            return False
        count = self.shape(node.inputs[0])[0]
        if node.op_type == "Gather" and node.inputs[1] in self._model.constants:
            return bool((self.array(node.inputs[1]) % count).all())
        if node.op_type == "Slice":
            start = self.attribute_or_constant(node, "starts", 1)[0]
            return bool(
                start % count > 0 and self.attribute_or_constant(node, "steps", 4, [1])[0] > 0
            )
        return False


# Rules: conditions under which the outputs of a node have independent rows.


def _elementwise(analysis: _RowAnalysis, node: Node) -> None:
    _broadcast(analysis, node.reads, max(len(analysis.shape(value)) for value in node.reads))


def _broadcast(analysis: _RowAnalysis, values: Iterable[str], rank: int) -> None:
    """Check that values keep the batch on axis 0, one row each, if broadcast to `rank` axes."""
    for value in values:
        if analysis.has_rows(value):
            _require(len(analysis.shape(value)) == rank, f"broadcasts {value!r} over axis 0")
        else:
            _require(analysis.is_single(value, rank), f"takes {value!r}, which has rows of its own")


def _first_input_only(analysis: _RowAnalysis, node: Node) -> None:
    """Only the first input may have rows; the others are parameters."""
    for value in node.reads[1:]:
        _require(analysis.kind(value) is _ValueKind.SAME, f"takes rows as its parameter {value!r}")


def _max_pool(analysis: _RowAnalysis, node: Node) -> None:
    _require(len(node.writes) == 1, "returns indices into the whole batch")


def _batch_normalization(analysis: _RowAnalysis, node: Node) -> None:
    _first_input_only(analysis, node)
    is_old_training = analysis.opset < 14 and len(node.writes) > 1
    _require(
        not is_old_training and not node.attributes.get("training_mode"),
        "computes means over the batch",
    )


def _dropout(analysis: _RowAnalysis, node: Node) -> None:
    is_training = analysis.attribute_or_constant(node, "training_mode", 2, [False])[0]
    is_old_training = analysis.opset < 7 and not node.attributes.get("is_test")
    _require(not is_old_training and not is_training, "drops elements at random")


def _resize(analysis: _RowAnalysis, node: Node) -> None:
    _first_input_only(analysis, node)
    index = 1 if node.op_type == "Upsample" or len(node.inputs) == 2 else 2
    scales = analysis.attribute_or_constant(node, "scales", index) or []
    _require(len(scales) == analysis.rank(node), "has no constant scales for all axes")
    _require(scales[0] == 1, "scales axis 0")


def _check_pad(analysis: _RowAnalysis, node: Node) -> None:
    _first_input_only(analysis, node)
    old_pads = node.attributes.get("paddings")  # the name of the attribute in opset 1
    pads = analysis.attribute_or_constant(node, "pads", 1, old_pads)
    axes = analysis.attribute_or_constant(node, "axes", 3, range(analysis.rank(node)))
    padded_axes = [
        a
        for a, before, after in zip(axes, pads, pads[len(axes) :], strict=False)
        if before or after
    ]
    analysis.check_axes(node, padded_axes)


def _transpose(analysis: _RowAnalysis, node: Node) -> None:
    permutation = node.attributes.get("perm", range(analysis.rank(node))[::-1])
    _require(permutation[0] == 0, "moves axis 0")


def _flatten(analysis: _RowAnalysis, node: Node) -> None:
    _require(node.attributes.get("axis", 1) % analysis.rank(node) == 1, "merges axis 0 with others")


def _unsqueeze(analysis: _RowAnalysis, node: Node) -> None:
    axes = analysis.attribute_or_constant(node, "axes", 1)
    rank = analysis.rank(node) + len(axes)
    _require(all(axis % rank for axis in axes), "inserts an axis before the batch")


def _slice(analysis: _RowAnalysis, node: Node) -> None:
    _first_input_only(analysis, node)
    axes = analysis.attribute_or_constant(node, "axes", 3)
    if axes is None:
        axes = range(len(analysis.attribute_or_constant(node, "starts", 1)))
    analysis.check_axes(node, axes)


def _reduction(analysis: _RowAnalysis, node: Node) -> None:
    """The operator reduces given axes; by default all."""
    axes = analysis.attribute_or_constant(node, "axes", 1)
    if axes or not node.attributes.get("noop_with_empty_axes"):
        _require(bool(axes), "operates on all axes")
        analysis.check_axes(node, axes)


def _single_axis(analysis: _RowAnalysis, node: Node) -> None:
    """The operator operates on one axis, an attribute."""
    _first_input_only(analysis, node)
    default = _DEFAULT_AXES[node.op_type]
    if node.op_type in ("Softmax", "LogSoftmax", "Hardmax") and analysis.opset < 13:
        default = 1
    analysis.check_axes(node, [node.attributes.get("axis", default)])


def _cumsum(analysis: _RowAnalysis, node: Node) -> None:
    analysis.check_axes(node, analysis.array(node.inputs[1]).ravel().tolist())


def _all_rows(analysis: _RowAnalysis, node: Node) -> None:
    """All inputs have rows, and the operator operates on another axis."""
    for value in node.reads:
        _require(
            analysis.has_rows(value), f"takes {value!r}, which is {analysis.kind(value).value}"
        )
    analysis.check_axes(node, [node.attributes.get("axis", 0)])


def _gather(analysis: _RowAnalysis, node: Node) -> None:
    data, indices = node.inputs
    if not analysis.has_rows(data):
        _require(not node.attributes.get("axis", 0), "moves the batch behind other axes")
        return
    _require(not analysis.has_rows(indices), "gathers rows by rows")
    analysis.check_axes(node, [node.attributes.get("axis", 0)])


def _matmul(analysis: _RowAnalysis, node: Node) -> None:
    factors = (node.inputs[0], node.inputs[3 if node.op_type == "QLinearMatMul" else 1])
    for value in node.reads:
        is_factor = value in factors
        _require(
            is_factor or not analysis.has_rows(value), f"takes rows as its parameter {value!r}"
        )
    rank = max(len(analysis.shape(value)) for value in factors)
    if rank > 2:
        _broadcast(analysis, factors, rank)
    else:
        _require(len(analysis.shape(factors[0])) == 2, "multiplies over axis 0")
        _require(not analysis.has_rows(factors[1]), "multiplies rows with each other")


def _gemm(analysis: _RowAnalysis, node: Node) -> None:
    first, second, *third = node.inputs
    _require(not analysis.has_rows(second), "multiplies rows with each other")
    _require(not node.attributes.get("transA"), "transposes the batch")
    for value in filter(None, third):
        is_independent = analysis.is_single(value, 2) or analysis.has_rows(value)
        _require(is_independent, f"takes {value!r}, which has rows of its own")
    _require(analysis.has_rows(first), "adds rows to a value without rows")


def _reshape(analysis: _RowAnalysis, node: Node) -> None:
    """Axis 0 must remain, so that the elements of each row stay together."""
    _require(analysis.has_rows(node.inputs[0]), "creates rows from a value without rows")
    input_sizes, output_shape = analysis.shape(node.inputs[0])[1:], analysis.shape(node.outputs[0])
    if output_shape[:1] == (_BATCH,):
        return
    sizes = (*input_sizes, *output_shape[1:])
    is_known = bool(output_shape) and all(isinstance(size, int) for size in sizes)
    is_kept = (
        is_known
        and not isinstance(output_shape[0], int)
        and prod(input_sizes) == prod(output_shape[1:]) > 0
    )
    _require(is_kept, f"gives {node.outputs[0]!r}, whose axis 0 may not be the batch")


def _expand(analysis: _RowAnalysis, node: Node) -> None:
    data, output_shape = node.inputs[0], analysis.shape(node.outputs[0])
    has_all = analysis.has_rows(data) and len(analysis.shape(data)) == len(output_shape)
    fits = has_all or analysis.is_single(data, len(output_shape))
    _require(
        fits and output_shape[:1] == (_BATCH,), "does not expand to a row for each of the batch"
    )


def _constant_of_shape(analysis: _RowAnalysis, node: Node) -> None:
    _require(analysis.shape(node.outputs[0])[:1] == (_BATCH,), "does not make a row for each")


def _tile(analysis: _RowAnalysis, node: Node) -> None:
    _require(analysis.array(node.inputs[1]).ravel()[0] == 1, "repeats axis 0")


#: Operators that compute sizes from sizes.
_SIZE_OPERATOR_NAMES: Final = """
    Gather Slice Concat Unsqueeze Squeeze Cast Identity Reshape Add Sub Mul Div Mod Min Max Equal
    Where
"""
#: Elementwise operators with broadcasting.
_ELEMENTWISE: Final = """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr
    BitwiseXor Cast CastLike Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater
    GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max
    Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin
    Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
"""
#: Operators whose first input has rows; the others are parameters.
_FIRST_INPUT_OPERATORS: Final = """
    AveragePool Conv ConvInteger ConvTranspose DepthToSpace DequantizeLinear
    GlobalAveragePool GlobalLpPool GlobalMaxPool GroupNormalization InstanceNormalization LRN
    LpPool QLinearConv QuantizeLinear SpaceToDepth
"""
#: Operators that reduce axes.
_REDUCTIONS: Final = """
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum ReduceSumSquare Squeeze
"""
_SIZE_OPERATORS: Final = frozenset(_SIZE_OPERATOR_NAMES.split())
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

_RULES: Final[dict[str, Callable[[_RowAnalysis, Node], None]]] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _elementwise),
    **dict.fromkeys(_FIRST_INPUT_OPERATORS.split(), _first_input_only),
    **dict.fromkeys(_REDUCTIONS.split(), _reduction),
    **dict.fromkeys(_DEFAULT_AXES, _single_axis),
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), _matmul),
    **dict.fromkeys(("Concat", "GatherElements"), _all_rows),
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
    "Pad": _check_pad,
    "Reshape": _reshape,
    "Slice": _slice,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
