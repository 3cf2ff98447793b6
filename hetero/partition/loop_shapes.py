"""Shapes of what a `Loop` carries, where ONNX's inference leaves even the rank open.

ONNX forgets the shapes of carried values, since an iteration may change them. A cut needs them: a
graph input without a rank is not valid ONNX. So a shape is sought that the values start with and
every iteration keeps: the initial one, in which each size that an iteration changes is left open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx

from hetero.devices.errors import ModelError
from hetero.devices.model.model import Model, Node
from hetero.devices.model.tensor_spec import Dimension, TensorSpec
from hetero.devices.model.type_inference import infer_types

Shape = tuple[Dimension, ...] | None


def with_loop_shapes(model: Model) -> Model:
    """Return the model with the shapes of loops' results among its types, where they are found.

    The same model comes back where there is nothing to add. Its ports stay as they are declared.
    """
    loops = [n for n in model.nodes if n.op_type == "Loop" and not n.domain]
    known: dict[str, TensorSpec] = {}
    typed = model
    while found := {s.name: s for n in loops for s in _results(typed, n) if s.name not in known}:
        known |= found
        typed = model.replace(
            value_info=[*model.value_info, *(spec.to_proto() for spec in known.values())]
        )
    if not known:
        return model
    return model.replace(value_info=typed.value_info, specs=typed.specs)


def _results(model: Model, node: Node) -> Iterator[TensorSpec]:
    """Yield types with shapes for those of a loop's outputs that have a type and no rank."""
    open_ = [v for v in node.writes if (s := model.spec(v)).is_tensor and s.shape is None]
    body = node.attributes.get("body")
    if not open_ or not isinstance(body, onnx.GraphProto):
        return
    start = [model.spec(value) if value else TensorSpec("", "") for value in node.inputs[2:]]
    shapes = _invariant(model, node, body, [spec.shape for spec in start])
    for value, shape in zip(node.outputs, shapes, strict=False):
        if value in open_ and shape is not None:
            yield TensorSpec(value, model.spec(value).type, shape)


def _invariant(
    model: Model, node: Node, body: onnx.GraphProto, carried: Sequence[Shape]
) -> list[Shape]:
    """Return the shapes of a loop's outputs, from shapes that every iteration keeps."""
    shapes = list(carried)
    while True:
        types = _infer(model, node, body, shapes)
        after = [types[port.name].shape if port.name in types else None for port in body.output]
        wider = [_join(a, b) for a, b in zip(shapes, after[1:], strict=False)]
        if wider == shapes:
            stacked = after[1 + len(shapes) :]
            return [*shapes, *(None if s is None else (None, *s) for s in stacked)]
        shapes = wider


def _join(a: Shape, b: Shape) -> Shape:
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))


def _infer(
    model: Model, node: Node, body: onnx.GraphProto, carried: Sequence[Shape]
) -> Mapping[str, TensorSpec]:
    """Infer the types inside a loop's body, given the shapes that come in."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.header)
    proto.graph.CopyFrom(body)
    del proto.graph.input[:]
    # What an iteration makes is to be inferred, not taken from shapes declared for the first one.
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
            small = constant.array.nbytes <= 4096
            proto.graph.initializer.append(constant.to_proto() if small else constant.to_stub())
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
