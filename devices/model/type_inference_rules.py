"""Types and shapes that ONNX's inference leaves out: ONNX Runtime's own operators, and ai.onnx.ml.

ONNX's inference stops at operators that it does not know; these rules take it through those that
ONNX Runtime's quantiser, optimiser and model builder write: most make what one of ONNX's does. Of
ai.onnx.ml, which converters of scikit-learn write, onnx has no rule for some operators. It is
loaded in the process that infers types alone: there the rules change nobody else's onnx.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import onnx
from onnx import onnx_cpp2py_export
from onnx.defs import OpSchema, deregister_schema, register_schema
from onnx.shape_inference import InferenceError, infer_node_outputs

sys.modules["onnx_cpp2py_export"] = onnx_cpp2py_export  # by its name in a process that lacks onnx
from type_inference_worker import infer as infer_standard  # type: ignore # noqa: E402 - beside this

#: A dimension's size or symbol; None where it is open.
Size = int | str | None
Shape = list[Size] | None
#: The operator set whose definitions say what an operator of ONNX's makes: windows that would begin
#: in the padding are counted until 22.
_OPSET: Final = 21
#: Gives the outputs of a node their types.
Rule = Callable[["_Call"], None]


class _Call:
    """A node whose outputs get their types."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def type(self, position: int) -> int:
        """Return an input's element type, 0 where it is unknown or absent."""
        found = self._tensor(position)
        return 0 if found is None else int(found.elem_type)

    def shape(self, position: int) -> Shape:
        """Return an input's shape, None where its rank is unknown or it is absent."""
        found = self._tensor(position)
        return None if found is None else _shape(found)

    def attribute(self, name: str, default: Any) -> Any:
        """Return an attribute's value."""
        found = self._context.get_attribute(name)
        return default if found is None else onnx.helper.get_attribute_value(found)

    def give(self, position: int, element_type: int, shape: Shape) -> None:
        """Say what an output is, if the node has it."""
        if not element_type or position >= self._context.get_num_outputs():
            return
        if shape is None:
            made = onnx.TypeProto()
            made.tensor_type.elem_type = element_type
        else:
            made = onnx.helper.make_tensor_type_proto(element_type, shape)
        self._context.set_output_type(position, made)

    def standard(self, op_type: str, *shapes: Shape, ceil_mode: int = 0) -> list[Shape]:
        """Return the shapes that an operator of ONNX's makes, of inputs of these and as the node.

        All are None where one of these is, or they contradict each other.
        """
        schema = onnx.defs.get_schema(op_type, _OPSET)
        node = onnx.helper.make_node(
            op_type, list(map(str, range(len(shapes)))), [o.name for o in schema.outputs]
        )
        for name in schema.attributes.keys() - {"ceil_mode"}:
            if (given := self._context.get_attribute(name)) is not None:
                node.attribute.append(given)
        if ceil_mode:
            node.attribute.append(onnx.helper.make_attribute("ceil_mode", ceil_mode))
        types = {
            str(i): onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, shape)
            for i, shape in enumerate(shapes)
        }
        made: dict[str, onnx.TypeProto] = {}
        if None not in shapes:
            with suppress(InferenceError):
                made = infer_node_outputs(schema, node, types)
        return [_shape(made[n].tensor_type) if n in made else None for n in node.output]

    @property
    def inputs(self) -> int:
        """How many inputs the node has."""
        return int(self._context.get_num_inputs())

    def _tensor(self, position: int) -> Any:
        if position >= self.inputs or not self._context.has_input(position):
            return None
        found = self._context.get_input_type(position)
        return found.tensor_type if found is not None and found.HasField("tensor_type") else None


def _shape(tensor: Any) -> Shape:
    if not tensor.HasField("shape"):
        return None
    return [
        d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim
    ]


def _times(*factors: Size) -> Size:
    product = 1
    for factor in factors:
        if not isinstance(factor, int):
            return None
        product *= factor
    return product


def _over(size: Size, divisor: Size) -> Size:
    return size // divisor if isinstance(size, int) and isinstance(divisor, int) else None


def _flipped(shape: Shape, matrix: int, batch: int = 0) -> Shape:
    if shape is None or len(shape) < 2:
        return shape
    if batch:
        shape = [*shape[1:-1], shape[0], shape[-1]]
    return [*shape[:-2], shape[-1], shape[-2]] if matrix else shape


def _like_input(element: int = 0) -> Rule:
    """The output is as the first input, of another type if one is given."""
    return lambda call: call.give(0, element or call.type(0), call.shape(0))


def _as(op_type: str, element: int, *positions: int, absent: int = 0) -> Rule:
    """The shapes are those that an operator of ONNX's makes of the inputs at `positions`.

    The type is that of the input `element`; `absent` where there is none.
    """

    def rule(call: _Call) -> None:
        kind = call.type(element) or absent
        for i, shape in enumerate(call.standard(op_type, *map(call.shape, positions))):
            call.give(i, kind, shape)

    return rule


def _normalised(call: _Call) -> None:
    shape = call.shape(0)
    rows = None if shape is None else [*shape[:-1], 1]
    call.give(0, call.type(0), shape)
    call.give(1, onnx.TensorProto.FLOAT, rows)
    call.give(2, onnx.TensorProto.FLOAT, rows)
    call.give(3, call.type(0), shape)


def _embedded(call: _Call) -> None:
    ids, word = call.shape(0), call.shape(2)
    whole = None if ids is None or word is None else [*ids, word[1]]
    call.give(0, call.type(2), whole)
    call.give(1, onnx.TensorProto.INT32, None if ids is None else ids[:1])
    call.give(2, call.type(2), whole)


def _attention(element: int, past: int) -> Rule:
    def rule(call: _Call) -> None:
        x, weights, cached = call.shape(0), call.shape(1), call.shape(past)
        sizes = call.attribute("qkv_hidden_sizes", ())
        width = sizes[2] if sizes else None if weights is None else _over(weights[1], 3)
        call.give(0, call.type(element), None if x is None else [*x[:2], width])
        heads = call.attribute("num_heads", 1)
        if x is not None:
            cached = cached or [2, x[0], heads, None, _over(width, heads)]
            call.give(1, call.type(element), [*cached[:3], None, cached[4]])

    return rule


def _multi_head(call: _Call) -> None:
    query, key, value = (call.shape(i) for i in range(3))
    heads = call.attribute("num_heads", 1)
    if query is None or len(query) != 3 or value is None:
        call.give(0, call.type(0), None)
        return
    parts = [
        None if x is None else x[3] if len(x) == 4 else _over(x[2], heads) for x in (key, value)
    ]
    call.give(0, call.type(0), [*query[:2], _times(heads, parts[1])])
    for i, part in enumerate(parts):
        call.give(1 + i, call.type(0), [query[0], heads, None, part])


def _grouped(call: _Call) -> None:
    query, past = call.shape(0), call.shape(3)
    heads, groups = call.attribute("num_heads", 1), call.attribute("kv_num_heads", 1)
    if query is None or len(query) != 3:
        call.give(0, call.type(0), None)
        return
    width = _over(query[2], heads if call.type(1) else heads + 2 * groups)
    call.give(0, call.type(0), [*query[:2], _times(heads, width)])
    for i in (1, 2):
        cached = [query[0], groups, None, past[3] if past else width]
        call.give(i, call.type(2 + i) or call.type(0), cached)


def _fused_matmul(call: _Call) -> None:
    a, b = (
        _flipped(
            call.shape(i), call.attribute(f"trans{side}", 0), call.attribute(f"transBatch{side}", 0)
        )
        for i, side in enumerate("AB")
    )
    call.give(0, call.type(0), *call.standard("MatMul", a, b))


def _matmul_nbits(call: _Call) -> None:
    a = call.shape(0)
    call.give(0, call.type(0), None if a is None else [*a[:-1], call.attribute("N", None)])


def _gather_blocks(call: _Call) -> None:
    data, indices = call.shape(0), call.shape(1)
    shape: Shape = None
    if data is not None and indices is not None:
        packed = call.type(0) == onnx.TensorProto.UINT8
        each = 8 // call.attribute("bits", 4) if packed else 1
        axis = call.attribute("gather_axis", 0) % len(data)
        whole = [*data[:-1], _times(data[-1], each)]
        shape = [*whole[:axis], *indices, *whole[axis + 1 :]]
    call.give(0, call.type(2), shape)


def _concatenated(call: _Call) -> None:
    shapes = [call.shape(i) for i in range(2, call.inputs, 3)]
    call.give(0, call.type(1), *call.standard("Concat", *shapes))


def _pool(op_type: str, last: int = 0) -> Rule:
    """A pool; `last`: whether channels come last where no attribute says so."""

    def rule(call: _Call) -> None:
        x = call.shape(0)
        is_last = call.attribute("channels_last", last)
        if x is not None and is_last:
            x = [x[0], x[-1], *x[1:-1]]
        (y,) = call.standard(op_type, x)[:1]
        if y is not None and call.attribute("ceil_mode", 0):  # what ends in the padding is open
            (more,) = call.standard(op_type, x, ceil_mode=1)[:1]
            y = [size if size == other else None for size, other in zip(y, more or y, strict=True)]
        if y is not None and is_last:
            y = [y[0], *y[2:], y[1]]
        call.give(0, call.type(0), y)

    return rule


_RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(
        (
            "BiasAdd",
            "BiasGelu",
            "Gelu",
            "FastGelu",
            "QuickGelu",
            "RotaryEmbedding",
            "QLinearSigmoid",
            "QLinearLeakyRelu",
            "QLinearSoftmax",
        ),
        _like_input(),
    ),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _normalised),
    **dict.fromkeys(("FusedMatMul", "TransposeMatMul"), _fused_matmul),
    "EmbedLayerNormalization": _embedded,
    "Attention": _attention(0, 4),
    "QAttention": _attention(3, 8),
    "MultiHeadAttention": _multi_head,
    "GroupQueryAttention": _grouped,
    "FusedGemm": _as("Gemm", 0, 0, 1),
    "QGemm": _as("Gemm", 8, 0, 3, absent=onnx.TensorProto.FLOAT),
    "MatMulIntegerToFloat": _as("MatMul", 2, 0, 1),
    "DynamicQuantizeMatMul": _as("MatMul", 0, 0, 1),
    "MatMulNBits": _matmul_nbits,
    "GatherBlockQuantized": _gather_blocks,
    "QLinearAdd": _as("Max", 0, 0, 3),
    "QLinearMul": _as("Max", 0, 0, 3),
    "QLinearWhere": _as("Max", 1, 0, 1, 4),
    "QLinearConcat": _concatenated,
    "QLinearAveragePool": _pool("AveragePool"),
    "QLinearGlobalAveragePool": _pool("GlobalAveragePool"),
    "NhwcMaxPool": _pool("MaxPool", 1),
    "FusedConv": _as("Conv", 0, 0, 1),
    "DynamicQuantizeLSTM": _as("LSTM", 0, 0, 1, 2),
    "QuantizeLinear": _as("Max", 2, 0),
    "DequantizeLinear": _as("Max", 1, 0),
}


def _simplified(call: _Call) -> None:
    shape = call.shape(0)
    call.give(0, call.type(1), shape)
    call.give(1, onnx.TensorProto.FLOAT, None if shape is None else [*shape[:-1], 1])


def _columns(width: Callable[[_Call], Size]) -> Rule:
    """Numbers in so many columns, a row for each of the input."""
    return lambda call: call.give(0, onnx.TensorProto.FLOAT, [_rows(call), width(call)])


def _rows(call: _Call) -> Size:
    shape = call.shape(0)
    return None if shape is None else 1 if len(shape) < 2 else shape[0]


def _classified(call: _Call) -> None:
    rows, names = _rows(call), call.attribute("classlabels_strings", ())
    call.give(0, onnx.TensorProto.STRING if names else onnx.TensorProto.INT64, [rows])
    call.give(1, onnx.TensorProto.FLOAT, [rows, None])


#: Of ai.onnx.ml 1, whose later versions onnx knows where there are any.
_ML_RULES: Final[dict[str, Rule]] = {
    "FeatureVectorizer": _columns(lambda call: sum(call.attribute("inputdimensions", ())) or None),
    "Imputer": _like_input(),
    "LinearRegressor": _columns(lambda call: call.attribute("targets", 1)),
    "Normalizer": _like_input(onnx.TensorProto.FLOAT),
    "Scaler": _like_input(onnx.TensorProto.FLOAT),
    "SVMClassifier": _classified,
    "SVMRegressor": _columns(lambda call: 1),
    "TreeEnsembleClassifier": _classified,
    "TreeEnsembleRegressor": _columns(lambda call: call.attribute("n_targets", 1)),
}


def _apply(rule: Rule, context: Any) -> None:
    rule(_Call(context))


def _register() -> None:
    """Teach the onnx of this process the rules."""
    rules = {("com.microsoft", name): rule for name, rule in _RULES.items()}
    rules["", "SimplifiedLayerNormalization"] = _simplified  # ONNX Runtime has it there
    onnx.defs.has("Identity")  # onnx registers its own when it is first asked
    for name, rule in _ML_RULES.items():
        deregister_schema(name, 1, "ai.onnx.ml")
        rules["ai.onnx.ml", name] = rule
    for (domain, name), rule in rules.items():
        schema = OpSchema(name, domain, 1)
        schema.set_type_and_shape_inference_function(partial(_apply, rule))
        register_schema(schema)


def infer(request: bytes) -> bytes:
    """Answer as `type_inference_worker.infer`, by the rules too."""
    answer: bytes = infer_standard(request)
    return answer


_register()
