"""Type inference rules for operators that ONNX's own inference does not support.

They cover the operators of ``com.microsoft`` that ONNX Runtime's quantizer, optimizer and model
builder write, and those operators of ``ai.onnx.ml`` for which onnx has no rule. Most rules reuse
the inference function of a similar ONNX operator.

The module registers the rules with onnx. Only the worker process of type inference imports it, so
that the onnx package of the user's process does not change.
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

sys.modules["onnx_cpp2py_export"] = onnx_cpp2py_export  # its name in processes without onnx
from type_inference_worker import infer as infer_standard  # type: ignore # noqa: E402 - in this folder

#: A dimension's size or symbol; None if it is unknown.
Size = int | str | None
Shape = list[Size] | None
#: The opset whose inference functions the rules reuse. From opset 22 on, pooling no longer counts
#: windows that begin in the padding, as these operators do.
_OPSET: Final = 21
#: Sets the types of a node's outputs.
Rule = Callable[["_NodeContext"], None]


class _NodeContext:
    """Access to the input types and attributes of a node, and to its output types."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def type(self, position: int) -> int:
        """Return an input's element type, 0 if it is unknown or absent."""
        tensor = self._tensor(position)
        return 0 if tensor is None else int(tensor.elem_type)

    def shape(self, position: int) -> Shape:
        """Return an input's shape, None if its rank is unknown or it is absent."""
        tensor = self._tensor(position)
        return None if tensor is None else _shape(tensor)

    def attribute(self, name: str, default: Any) -> Any:
        """Return an attribute's value."""
        attribute = self._context.get_attribute(name)
        return default if attribute is None else onnx.helper.get_attribute_value(attribute)

    def set_output(self, position: int, element_type: int, shape: Shape) -> None:
        """Set the type of an output, if the node has that output and the type is known."""
        if not element_type or position >= self._context.get_num_outputs():
            return
        if shape is None:
            output_type = onnx.TypeProto()
            output_type.tensor_type.elem_type = element_type
        else:
            output_type = onnx.helper.make_tensor_type_proto(element_type, shape)
        self._context.set_output_type(position, output_type)

    def standard(self, op_type: str, *shapes: Shape, ceil_mode: int = 0) -> list[Shape]:
        """Return the output shapes of an ONNX operator with these input shapes.

        The operator gets the attributes of the node. All output shapes are None if an input shape
        is None, or if the input shapes contradict each other.
        """
        schema = onnx.defs.get_schema(op_type, _OPSET)
        node = onnx.helper.make_node(
            op_type, list(map(str, range(len(shapes)))), [o.name for o in schema.outputs]
        )
        for name in schema.attributes.keys() - {"ceil_mode"}:
            if (attribute := self._context.get_attribute(name)) is not None:
                node.attribute.append(attribute)
        if ceil_mode:
            node.attribute.append(onnx.helper.make_attribute("ceil_mode", ceil_mode))
        types = {
            str(i): onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, shape)
            for i, shape in enumerate(shapes)
        }
        types_by_output: dict[str, onnx.TypeProto] = {}
        if None not in shapes:
            with suppress(InferenceError):
                types_by_output = infer_node_outputs(schema, node, types)
        return [
            _shape(types_by_output[n].tensor_type) if n in types_by_output else None
            for n in node.output
        ]

    @property
    def inputs(self) -> int:
        """Number of inputs of the node."""
        return int(self._context.get_num_inputs())

    def _tensor(self, position: int) -> Any:
        if not self._context.has_input(position):
            return None
        input_type = self._context.get_input_type(position)
        return (
            input_type.tensor_type
            if input_type is not None and input_type.HasField("tensor_type")
            else None
        )


def _shape(tensor: Any) -> Shape:
    if not tensor.HasField("shape"):
        return None
    return [
        d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim
    ]


def _multiply(*factors: Size) -> Size:
    product = 1
    for factor in factors:
        if not isinstance(factor, int):
            return None
        product *= factor
    return product


def _divide(size: Size, divisor: Size) -> Size:
    return size // divisor if isinstance(size, int) and isinstance(divisor, int) else None


def _transpose_shape(shape: Shape, matrix: int, batch: int = 0) -> Shape:
    if shape is None or len(shape) < 2:
        return shape
    if batch:
        shape = [*shape[1:-1], shape[0], shape[-1]]
    return [*shape[:-2], shape[-1], shape[-2]] if matrix else shape


def _like_input(element: int = 0) -> Rule:
    """Return a rule for an output with the first input's shape and, by default, its type."""
    return lambda call: call.set_output(0, element or call.type(0), call.shape(0))


def _like_operator(op_type: str, element: int, *positions: int, absent: int = 0) -> Rule:
    """Return a rule for the output shapes of an ONNX operator on the inputs at `positions`.

    The input `element` determines the element type; `absent` is the type without that input.
    """

    def rule(call: _NodeContext) -> None:
        kind = call.type(element) or absent
        for i, shape in enumerate(call.standard(op_type, *map(call.shape, positions))):
            call.set_output(i, kind, shape)

    return rule


def _skip_layer_normalization(call: _NodeContext) -> None:
    shape = call.shape(0)
    rows = None if shape is None else [*shape[:-1], 1]
    call.set_output(0, call.type(0), shape)
    call.set_output(1, onnx.TensorProto.FLOAT, rows)
    call.set_output(2, onnx.TensorProto.FLOAT, rows)
    call.set_output(3, call.type(0), shape)


def _embed_layer_normalization(call: _NodeContext) -> None:
    ids, word = call.shape(0), call.shape(2)
    output_shape = None if ids is None or word is None else [*ids, word[1]]
    call.set_output(0, call.type(2), output_shape)
    call.set_output(1, onnx.TensorProto.INT32, None if ids is None else ids[:1])
    call.set_output(2, call.type(2), output_shape)


def _attention(element: int, past: int) -> Rule:
    def rule(call: _NodeContext) -> None:
        x, weights, cache_shape = call.shape(0), call.shape(1), call.shape(past)
        sizes = call.attribute("qkv_hidden_sizes", ())
        width = sizes[2] if sizes else None if weights is None else _divide(weights[1], 3)
        call.set_output(0, call.type(element), None if x is None else [*x[:2], width])
        heads = call.attribute("num_heads", 1)
        if x is not None:
            cache_shape = cache_shape or [2, x[0], heads, None, _divide(width, heads)]
            call.set_output(1, call.type(element), [*cache_shape[:3], None, cache_shape[4]])

    return rule


def _multi_head_attention(call: _NodeContext) -> None:
    query, key, value = (call.shape(i) for i in range(3))
    heads = call.attribute("num_heads", 1)
    if query is None or len(query) != 3 or value is None:
        call.set_output(0, call.type(0), None)
        return
    parts = [
        None if x is None else x[3] if len(x) == 4 else _divide(x[2], heads) for x in (key, value)
    ]
    call.set_output(0, call.type(0), [*query[:2], _multiply(heads, parts[1])])
    for i, part in enumerate(parts):
        call.set_output(1 + i, call.type(0), [query[0], heads, None, part])


def _group_query_attention(call: _NodeContext) -> None:
    query, past = call.shape(0), call.shape(3)
    heads, groups = call.attribute("num_heads", 1), call.attribute("kv_num_heads", 1)
    if query is None or len(query) != 3:
        call.set_output(0, call.type(0), None)
        return
    width = _divide(query[2], heads if call.type(1) else heads + 2 * groups)
    call.set_output(0, call.type(0), [*query[:2], _multiply(heads, width)])
    capacity = past[2] if past and call.attribute("sliding_window_cache", 0) else None
    for i in (1, 2):
        cache_shape = [query[0], groups, capacity, past[3] if past else width]
        call.set_output(i, call.type(2 + i) or call.type(0), cache_shape)


def _fused_matmul(call: _NodeContext) -> None:
    a, b = (
        _transpose_shape(
            call.shape(i), call.attribute(f"trans{side}", 0), call.attribute(f"transBatch{side}", 0)
        )
        for i, side in enumerate("AB")
    )
    call.set_output(0, call.type(0), *call.standard("MatMul", a, b))


def _matmul_nbits(call: _NodeContext) -> None:
    a = call.shape(0)
    call.set_output(0, call.type(0), None if a is None else [*a[:-1], call.attribute("N", None)])


def _gather_block_quantized(call: _NodeContext) -> None:
    data, indices = call.shape(0), call.shape(1)
    shape: Shape = None
    if data is not None and indices is not None:
        is_packed = call.type(0) == onnx.TensorProto.UINT8
        elements_per_byte = 8 // call.attribute("bits", 4) if is_packed else 1
        axis = call.attribute("gather_axis", 0) % len(data)
        unpacked_shape = [*data[:-1], _multiply(data[-1], elements_per_byte)]
        shape = [*unpacked_shape[:axis], *indices, *unpacked_shape[axis + 1 :]]
    call.set_output(0, call.type(2), shape)


def _concat(call: _NodeContext) -> None:
    shapes = [call.shape(i) for i in range(2, call.inputs, 3)]
    call.set_output(0, call.type(1), *call.standard("Concat", *shapes))


def _pool(op_type: str, channels_last: int = 0) -> Rule:
    """Return a rule for a pool; `channels_last` is the default of the attribute."""

    def rule(call: _NodeContext) -> None:
        x = call.shape(0)
        is_last = call.attribute("channels_last", channels_last)
        if x is not None and is_last:
            x = [x[0], x[-1], *x[1:-1]]
        (y,) = call.standard(op_type, x)[:1]
        if y is not None and call.attribute(
            "ceil_mode", 0
        ):  # sizes that depend on the padding stay unknown
            (ceil_shape,) = call.standard(op_type, x, ceil_mode=1)[:1]
            y = [
                size if size == other else None
                for size, other in zip(y, ceil_shape or y, strict=True)
            ]
        if y is not None and is_last:
            y = [y[0], *y[2:], y[1]]
        call.set_output(0, call.type(0), y)

    return rule


def _causal_conv_with_state(call: _NodeContext) -> None:
    x, weight = call.shape(0), call.shape(1)
    call.set_output(0, call.type(0), x)
    state: Shape = None
    if x is not None and weight is not None:
        length = weight[-1]
        state = [*x[:2], length - 1 if isinstance(length, int) else None]
    call.set_output(1, call.type(0), state)


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
    **dict.fromkeys(
        ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _skip_layer_normalization
    ),
    **dict.fromkeys(("FusedMatMul", "TransposeMatMul"), _fused_matmul),
    "EmbedLayerNormalization": _embed_layer_normalization,
    "Attention": _attention(0, 4),
    "QAttention": _attention(3, 8),
    "MultiHeadAttention": _multi_head_attention,
    "GroupQueryAttention": _group_query_attention,
    "FusedGemm": _like_operator("Gemm", 0, 0, 1),
    "QGemm": _like_operator("Gemm", 8, 0, 3, absent=onnx.TensorProto.FLOAT),
    "MatMulIntegerToFloat": _like_operator("MatMul", 2, 0, 1),
    "DynamicQuantizeMatMul": _like_operator("MatMul", 0, 0, 1),
    "MatMulNBits": _matmul_nbits,
    "GatherBlockQuantized": _gather_block_quantized,
    "QLinearAdd": _like_operator("Max", 0, 0, 3),
    "QLinearMul": _like_operator("Max", 0, 0, 3),
    "QLinearWhere": _like_operator("Max", 1, 0, 1, 4),
    "QLinearConcat": _concat,
    "QLinearAveragePool": _pool("AveragePool"),
    "QLinearGlobalAveragePool": _pool("GlobalAveragePool"),
    "NhwcMaxPool": _pool("MaxPool", 1),
    "CausalConvWithState": _causal_conv_with_state,
    "FusedConv": _like_operator("Conv", 0, 0, 1),
    "DynamicQuantizeLSTM": _like_operator("LSTM", 0, 0, 1, 2),
    "QuantizeLinear": _like_operator("Max", 2, 0),
    "DequantizeLinear": _like_operator("Max", 1, 0),
}


def _simplified_layer_normalization(call: _NodeContext) -> None:
    shape = call.shape(0)
    call.set_output(0, call.type(1), shape)
    call.set_output(1, onnx.TensorProto.FLOAT, None if shape is None else [*shape[:-1], 1])


def _float_columns(width: Callable[[_NodeContext], Size]) -> Rule:
    """Return a rule for a float matrix with one row per input row and `width` columns."""
    return lambda call: call.set_output(0, onnx.TensorProto.FLOAT, [_rows(call), width(call)])


def _rows(call: _NodeContext) -> Size:
    shape = call.shape(0)
    return None if shape is None else 1 if len(shape) < 2 else shape[0]


def _classifier(call: _NodeContext) -> None:
    rows, names = _rows(call), call.attribute("classlabels_strings", ())
    call.set_output(0, onnx.TensorProto.STRING if names else onnx.TensorProto.INT64, [rows])
    call.set_output(1, onnx.TensorProto.FLOAT, [rows, None])


#: Rules of ai.onnx.ml version 1; onnx has rules for later versions.
_ML_RULES: Final[dict[str, Rule]] = {
    "FeatureVectorizer": _float_columns(
        lambda call: sum(call.attribute("inputdimensions", ())) or None
    ),
    "Imputer": _like_input(),
    "LinearRegressor": _float_columns(lambda call: call.attribute("targets", 1)),
    "Normalizer": _like_input(onnx.TensorProto.FLOAT),
    "Scaler": _like_input(onnx.TensorProto.FLOAT),
    "SVMClassifier": _classifier,
    "SVMRegressor": _float_columns(lambda call: 1),
    "TreeEnsembleClassifier": _classifier,
    "TreeEnsembleRegressor": _float_columns(lambda call: call.attribute("n_targets", 1)),
}


def _apply(rule: Rule, context: Any) -> None:
    rule(_NodeContext(context))


def _register() -> None:
    """Register the rules with the onnx package of this process."""
    rules = {("com.microsoft", name): rule for name, rule in _RULES.items()}
    rules["", "SimplifiedLayerNormalization"] = (
        _simplified_layer_normalization  # ONNX Runtime's domain
    )
    onnx.defs.has("Identity")  # the first query makes onnx register its own schemas
    for name, rule in _ML_RULES.items():
        deregister_schema(name, 1, "ai.onnx.ml")
        rules["ai.onnx.ml", name] = rule
    for (domain, name), rule in rules.items():
        schema = OpSchema(name, domain, 1)
        schema.set_type_and_shape_inference_function(partial(_apply, rule))
        register_schema(schema)


def infer(request: bytes) -> bytes:
    """Infer the types of a serialized model with these rules; see `type_inference_worker.infer`."""
    response: bytes = infer_standard(request)
    return response


_register()
