"""Types and shapes of what ONNX Runtime's own operators make, for ONNX's inference.

ONNX's inference stops at operators that it does not know; these rules take it through those that
ONNX Runtime's quantiser, optimiser and model builder write. It is loaded in the process that infers
types alone: there the rules change nobody else's onnx.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, Final

import onnx
from onnx import onnx_cpp2py_export
from onnx.defs import OpSchema, register_schema

sys.modules["onnx_cpp2py_export"] = onnx_cpp2py_export  # by its name in a process that lacks onnx
from inference_answers import infer as infer_standard  # type: ignore # noqa: E402 - beside this

#: A dimension's size or symbol; None where it is open.
Size = int | str | None
Shape = list[Size] | None
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
        if found is None or not found.HasField("shape"):
            return None
        return [
            d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in found.shape.dim
        ]

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

    @property
    def inputs(self) -> int:
        """How many inputs the node has."""
        return int(self._context.get_num_inputs())

    def _tensor(self, position: int) -> Any:
        if position >= self.inputs or not self._context.has_input(position):
            return None
        found = self._context.get_input_type(position)
        return found.tensor_type if found is not None and found.HasField("tensor_type") else None


def _times(*factors: Size) -> Size:
    product = 1
    for factor in factors:
        if not isinstance(factor, int):
            return None
        product *= factor
    return product


def _plus(*terms: Size) -> Size:
    return sum(terms) if all(isinstance(t, int) for t in terms) else None  # type: ignore[arg-type]


def _over(size: Size, divisor: Size) -> Size:
    return size // divisor if isinstance(size, int) and isinstance(divisor, int) else None


def _broadcast(*shapes: Shape) -> Shape:
    whole: list[Size] = []
    for shape in shapes:
        if shape is None:
            return None
        pairs = zip_longest(reversed(whole), reversed(shape), fillvalue=1)
        whole = [b if a == 1 else a if b in (1, a) else _known(a, b) for a, b in pairs][::-1]
    return whole


def _known(one: Size, other: Size) -> Size:
    """Return the size of an axis that is both, one of which may be 1."""
    sizes = [size for size in (one, other) if isinstance(size, int)]
    return sizes[0] if sizes else None


def _product(a: Shape, b: Shape) -> Shape:
    if a is None or b is None or len(a) < 1 or len(b) < 2:
        return None
    batch = _broadcast(a[:-2], b[:-2])
    return None if batch is None else [*batch, *a[-2:-1], b[-1]]


def _flipped(shape: Shape, matrix: int, batch: int = 0) -> Shape:
    if shape is None or len(shape) < 2:
        return shape
    if batch:
        shape = [*shape[1:-1], shape[0], shape[-1]]
    return [*shape[:-2], shape[-1], shape[-2]] if matrix else shape


def _like(position: int = 0, *others: int) -> Rule:
    """The output has the type of an input; its shape is broadcast with those of others."""

    def rule(call: _Call) -> None:
        shapes = [call.shape(i) for i in (position, *others)]
        call.give(0, call.type(position), _broadcast(*shapes))

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
        _flipped(call.shape(i), call.attribute(f"trans{side}", 0),
                 call.attribute(f"transBatch{side}", 0))
        for i, side in enumerate("AB")
    )  # fmt: skip
    call.give(0, call.type(0), _product(a, b))


def _gemm(b: int, type_of: Sequence[int]) -> Rule:
    """`type_of`: inputs that the output has the type of: the first that is there, else float."""

    def rule(call: _Call) -> None:
        left = _flipped(call.shape(0), call.attribute("transA", 0))
        right = _flipped(call.shape(b), call.attribute("transB", 0))
        found = [kind for i in type_of if (kind := call.type(i))]
        kind = found[0] if found else int(onnx.TensorProto.FLOAT)
        call.give(0, kind, _product(left, right))

    return rule


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
    first = shapes[0]
    if first is None or None in shapes:
        call.give(0, call.type(1), None)
        return
    axis = call.attribute("axis", 0) % len(first)
    joined = _plus(*(shape[axis] for shape in shapes if shape is not None))
    call.give(0, call.type(1), [*first[:axis], joined, *first[axis + 1 :]])


def _recurrent(call: _Call) -> None:
    x, hidden = call.shape(0), call.attribute("hidden_size", None)
    both = 2 if call.attribute("direction", b"forward") == b"bidirectional" else 1
    steps, batch = (None, None) if x is None else x[:2]
    call.give(0, call.type(0), [steps, both, batch, hidden])
    call.give(1, call.type(0), [both, batch, hidden])
    call.give(2, call.type(0), [both, batch, hidden])


def _window(
    channels_last: int | None, weights: int | None = None, kernel: Sequence[int] = ()
) -> Rule:
    """Pools and convolutions; `channels_last` None: as the attribute says; 1: always."""

    def rule(call: _Call) -> None:
        shape = call.shape(0)
        last = call.attribute("channels_last", 0) if channels_last is None else channels_last
        filters = None if weights is None else call.shape(weights)
        if shape is None or (weights is not None and filters is None):
            call.give(0, call.type(0), None)
            return
        sizes = shape[1:-1] if last else shape[2:]
        channels = shape[-1 if last else 1] if filters is None else filters[0]
        extent = kernel or call.attribute("kernel_shape", None) or (filters or [])[2:]
        places = _places(call, sizes, extent)
        call.give(0, call.type(0), [shape[0], *places, channels] if last else
                  [shape[0], channels, *places])  # fmt: skip

    return rule


def _places(call: _Call, sizes: list[Size], extent: Sequence[Size]) -> list[Size]:
    """Return how many places a window has along each axis, None where that is not known."""
    rank = len(sizes)
    pads = call.attribute("pads", (0,) * 2 * rank)
    strides = call.attribute("strides", (1,) * rank)
    dilations = call.attribute("dilations", (1,) * rank)
    usual = call.attribute("auto_pad", b"NOTSET") == b"NOTSET"
    found: list[Size] = []
    for i, size in enumerate(sizes):
        reach = extent[i] if i < len(extent) else None
        if not usual or not isinstance(size, int) or not isinstance(reach, int):
            found.append(None)
            continue
        room = size + pads[i] + pads[i + rank] - dilations[i] * (reach - 1) - 1
        up = strides[i] - 1 if call.attribute("ceil_mode", 0) else 0
        found.append(None if up and room % strides[i] else room // strides[i] + 1)
    return found


def _global_pool(call: _Call) -> None:
    shape = call.shape(0)
    if shape is not None:
        ones: list[Size] = [1] * (len(shape) - 2)
        last = call.attribute("channels_last", 0)
        shape = [shape[0], *ones, shape[-1]] if last else [*shape[:2], *ones]
    call.give(0, call.type(0), shape)


def _of_type(position: int) -> Rule:
    return lambda call: call.give(0, call.type(position), call.shape(0))


_RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(
        ("BiasAdd", "BiasGelu", "Gelu", "FastGelu", "QuickGelu", "RotaryEmbedding",
         "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax"), _like()),
    **dict.fromkeys(
        ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _normalised),
    **dict.fromkeys(("FusedMatMul", "TransposeMatMul"), _fused_matmul),
    "EmbedLayerNormalization": _embedded,
    "Attention": _attention(0, 4),
    "QAttention": _attention(3, 8),
    "MultiHeadAttention": _multi_head,
    "GroupQueryAttention": _grouped,
    "FusedGemm": _gemm(1, (0,)),
    "QGemm": _gemm(3, (8,)),
    "MatMulIntegerToFloat": _gemm(1, (2,)),
    "DynamicQuantizeMatMul": _gemm(1, (0,)),
    "MatMulNBits": _matmul_nbits,
    "GatherBlockQuantized": _gather_blocks,
    "QLinearAdd": _like(0, 3),
    "QLinearMul": _like(0, 3),
    "QLinearWhere": _like(1, 0, 4),
    "QLinearConcat": _concatenated,
    "QLinearAveragePool": _window(None),
    "QLinearGlobalAveragePool": _global_pool,
    "NhwcMaxPool": _window(1),
    "FusedConv": _window(0, 1),
    "DynamicQuantizeLSTM": _recurrent,
    "QuantizeLinear": _of_type(2),
    "DequantizeLinear": _of_type(1),
}  # fmt: skip


def _simplified(call: _Call) -> None:
    shape = call.shape(0)
    call.give(0, call.type(1), shape)
    call.give(1, onnx.TensorProto.FLOAT, None if shape is None else [*shape[:-1], 1])


def _apply(rule: Rule, context: Any) -> None:
    rule(_Call(context))


def _register() -> None:
    """Teach the onnx of this process the rules."""
    rules = {("com.microsoft", name): rule for name, rule in _RULES.items()}
    rules["", "SimplifiedLayerNormalization"] = _simplified  # ONNX Runtime has it there
    for (domain, name), rule in rules.items():
        schema = OpSchema(name, domain, 1)
        schema.set_type_and_shape_inference_function(partial(_apply, rule))
        register_schema(schema)


def infer(request: bytes) -> bytes:
    """Answer as `inference_answers.infer`, by the rules too."""
    answer: bytes = infer_standard(request)
    return answer


_register()
