"""Shape inference for the outputs of `Loop` nodes if ONNX's inference leaves ranks or sizes open.

ONNX discards the shapes of loop-carried values because an iteration may change them. A partition
needs them: a graph input without a rank is not valid ONNX. This module computes an invariant
shape: the initial shape, with each dimension that an iteration changes left open.

ONNX also ignores the elements of captured constants, so it leaves sizes of scan outputs open. A
runtime sets an open size of a loop without iterations to 0, if it sees no more than ONNX.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import onnx

from hetero.devices.errors import ModelError
from hetero.devices.model.model import Model, Node
from hetero.devices.model.tensor_spec import Dimension, TensorSpec
from hetero.devices.model.type_inference import infer_types

Shape = tuple[Dimension, ...] | None

#: Shape inference reads the data of small constants only (sizes, axes); others get a stub.
_MAX_SHAPE_DATA_NBYTES: Final = 4096


def with_loop_shapes(model: Model) -> Model:
    """Return the model with inferred shapes of its loops' outputs in `value_info`.

    Returns the model itself if there is nothing to add. The declared types of its inputs and
    outputs do not change.
    """
    loops = [n for n in model.nodes if n.op_type == "Loop" and not n.domain]
    specs: dict[str, TensorSpec] = {}
    model_with_types = model
    while new_specs := {
        s.name: s
        for n in loops
        for s in _loop_output_specs(model_with_types, n)
        if s.name not in specs
    }:
        specs |= new_specs
        model_with_types = model.replace(
            value_info=[*model.value_info, *(spec.to_proto() for spec in specs.values())]
        )
    if not specs:
        return model
    return model.replace(value_info=model_with_types.value_info, specs=model_with_types.specs)


def _loop_output_specs(model: Model, node: Node) -> Iterator[TensorSpec]:
    """Yield specs with more sizes than those that are known, for a loop's outputs of known types.

    The first size of a scan output is the number of iterations, so it stays open.
    """
    carried_outputs = node.outputs[: len(node.inputs[2:])]
    open_values = [
        value
        for value in node.writes
        if (spec := model.spec(value)).is_tensor
        and (
            spec.shape is None
            or (value not in carried_outputs and not all(map(_is_size, spec.shape[1:])))
        )
    ]
    body = node.attributes.get("body")
    if not open_values or not isinstance(body, onnx.GraphProto):
        return
    initial = [model.spec(value) if value else TensorSpec("", "") for value in node.inputs[2:]]
    shapes = _invariant_shapes(model, node, body, [spec.shape for spec in initial])
    for value, shape in zip(node.outputs, shapes, strict=False):
        if value not in open_values or shape is None:
            continue
        known = model.spec(value).shape
        if known is not None:
            if len(known) != len(shape):
                continue
            shape = tuple(b if _is_size(b) else a for a, b in zip(known, shape, strict=True))
        if shape != known:
            yield TensorSpec(value, model.spec(value).type, shape)


def _is_size(dimension: Dimension) -> bool:
    return isinstance(dimension, int)


def _invariant_shapes(
    model: Model, node: Node, body: onnx.GraphProto, carried: Sequence[Shape]
) -> list[Shape]:
    """Return the shapes of a loop's outputs: those that every iteration preserves."""
    shapes = list(carried)
    while True:
        types = _infer_body_types(model, node, body, shapes)
        results = [types[port.name].shape if port.name in types else None for port in body.output]
        merged = [_merge_shapes(a, b) for a, b in zip(shapes, results[1:], strict=False)]
        if merged == shapes:
            scan_outputs = results[1 + len(shapes) :]
            return [*shapes, *(None if s is None else (None, *s) for s in scan_outputs)]
        shapes = merged


def _merge_shapes(a: Shape, b: Shape) -> Shape:
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))


def _infer_body_types(
    model: Model, node: Node, body: onnx.GraphProto, carried: Sequence[Shape]
) -> Mapping[str, TensorSpec]:
    """Infer the types inside the body of a loop from the shapes of its carried values."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.header)
    proto.graph.CopyFrom(body)
    del proto.graph.input[:]
    # Infer the results of an iteration: declared shapes may hold for the first iteration only.
    del proto.graph.value_info[:]
    for port in proto.graph.output:
        if port.type.HasField("tensor_type"):
            port.type.tensor_type.ClearField("shape")
    for i, port in enumerate(body.input):
        spec = TensorSpec.from_proto(port)
        if i < 2:
            shape: Shape = ()
        else:
            shape = carried[i - 2]
            outer = model.spec(node.inputs[i]) if i < len(node.inputs) else spec
            spec = spec if spec.type else outer
        if spec.type:
            proto.graph.input.append(TensorSpec(port.name, spec.type, shape).to_proto())
    for name in node.captures:
        if name in model.constants:
            constant = model.constants[name]
            data_matters = constant.array.nbytes <= _MAX_SHAPE_DATA_NBYTES
            proto.graph.initializer.append(
                constant.to_proto() if data_matters else constant.to_stub()
            )
        elif (outer := model.spec(name)).type:
            proto.graph.input.append(outer.to_proto())
    try:
        graph = infer_types(proto)
    except ModelError:
        return {}
    specs = (
        TensorSpec.from_proto(info) for info in (*graph.input, *graph.value_info, *graph.output)
    )
    return {spec.name: spec for spec in specs if spec.type}
