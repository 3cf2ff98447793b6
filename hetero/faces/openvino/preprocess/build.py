"""The model with its preprocessing and postprocessing: Model -> Model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import onnx

from hetero.devices.errors import ArgumentError
from hetero.devices.model.attributes import bodies
from hetero.devices.model.model import Model, Node
from hetero.devices.model.opset_conversion import upgrade_opset
from hetero.devices.model.partial_shape import PartialShape
from hetero.devices.model.tensor_spec import Dimension, TensorSpec
from hetero.faces.openvino.preprocess.colors import ColorFormat, plane_shapes
from hetero.faces.openvino.preprocess.emit import Emitter, Flow
from hetero.faces.openvino.preprocess.layout import Layout, axis_of, permutation
from hetero.faces.openvino.preprocess.steps import (
    Order,
    Step,
    check_order,
    convert_element_type,
    to_layout,
)

#: What models take.
_TAKEN: Final = (ColorFormat.UNDEFINED, ColorFormat.RGB, ColorFormat.BGR, ColorFormat.GRAY)


@dataclass
class Port:
    """What was said of a port: the user's tensor, the steps, and the model's side."""

    spec: TensorSpec
    element_type: str = ""
    tensor_layout: Layout | None = None
    model_layout: Layout | None = None
    shape: tuple[Dimension, ...] | None = None
    spatial: tuple[Dimension, Dimension] | None = None
    color: ColorFormat = ColorFormat.UNDEFINED
    planes: tuple[str, ...] = ()
    steps: list[Step] = field(default_factory=list)


def build(model: Model, inputs: Mapping[str, Port], outputs: Mapping[str, Port]) -> Model:
    """Return the model with the steps of its ports in it; see `PrePostProcessor.build`."""
    emit = Emitter(model)
    ports: list[TensorSpec] = []
    names: dict[str, str] = {}
    for spec in model.inputs:
        given, read = [spec], spec.name
        if spec.name in inputs:
            given, read = _input(inputs[spec.name], emit)
        ports += given
        if read != spec.name:
            if any(port.name == spec.name for port in model.outputs):
                raise ArgumentError(
                    f"input {spec.name!r} is an output of the model as well, so it cannot be "
                    "changed; put an Identity node before that output."
                )
            names[spec.name] = read
    before = list(emit.nodes)
    results: dict[str, TensorSpec] = {}
    for name, port in outputs.items():
        raw = emit.name(f"{name}/model")
        results[name], wrote = _output(port, raw, emit)
        if wrote:
            if name not in model.producers:
                raise ArgumentError(
                    f"output {name!r} is made by no node: it is an input or a constant; put an "
                    "Identity node before it to postprocess it."
                )
            names[name] = raw
    if emit.needs > emit.opset:
        return build(upgrade_opset(model, emit.needs), inputs, outputs)
    nodes = [_renamed(node, names) for node in model.nodes]
    return model.replace(
        nodes=[*before, *nodes, *emit.nodes[len(before) :]],
        inputs=ports,
        outputs=[results.get(spec.name, spec) for spec in model.outputs],
        constants=dict(model.constants) | emit.constants,
    )


def _input(port: Port, emit: Emitter) -> tuple[list[TensorSpec], str]:
    """Write an input's steps; return the ports in its place, and the value that the model reads."""
    spec, where = port.spec, f"input {port.spec.name!r}"
    if not spec.is_tensor:
        raise ArgumentError(f"{where} is a {spec.type}; only tensors are preprocessed.")
    emit.prefix = spec.name
    unsaid = port.tensor_layout is None and port.model_layout is None
    if unsaid and port.color is not ColorFormat.UNDEFINED and len(spec.shape or ()) == 4:
        # A picture without a layout is in OpenVINO's for colours.
        port = replace(port, tensor_layout=Layout("NHWC"), model_layout=Layout("NHWC"))
    start = _start(port, where)
    given = _given(port, start, emit)
    orders = [step for step in port.steps if isinstance(step, Order)]
    wanted = _ranked(port.model_layout, spec.shape, where)
    if port.model_layout is None:  # the model takes it as the steps leave it
        wanted = _layouts(orders, start.layout, where)[-1]
    values = tuple(p.name for p in given)
    flow = replace(start, values=values, shape=given[0].shape, model=(spec.shape, wanted))
    for step in port.steps:
        flow = step(flow, emit)
    flow = convert_element_type(flow, emit, spec.element_type)
    if wanted and flow.layout and len(flow.values) == 1:
        flow = to_layout(flow, wanted, emit)
    _check_fits(flow, spec)
    return given, flow.value


def _output(port: Port, raw: str, emit: Emitter) -> tuple[TensorSpec, bool]:
    """Write an output's steps behind `raw`; return the port, and whether there are any."""
    spec, where = port.spec, f"output {port.spec.name!r}"
    if not spec.is_tensor:
        raise ArgumentError(f"{where} is a {spec.type}; only tensors are postprocessed.")
    emit.prefix = spec.name
    layout = _ranked(port.model_layout, spec.shape, where)
    flow = Flow(where, (raw,), spec.element_type, spec.shape, layout)
    for step in port.steps:
        flow = step(flow, emit)
    flow = convert_element_type(flow, emit, port.element_type or flow.element_type)
    if port.tensor_layout and flow.layout:
        flow = Order(port.tensor_layout)(flow, emit)
    layout = flow.layout or _ranked(port.tensor_layout, flow.shape, where)
    made = TensorSpec(spec.name, f"tensor({flow.element_type})", flow.shape, layout)
    if flow.value == raw:
        return made, False
    last = emit.nodes[-1]
    emit.nodes[-1] = _renamed(last, {last.outputs[0]: spec.name})
    return made, True


def _start(port: Port, where: str) -> Flow:
    """Return the user's tensor as far as it follows from the model: before sizes and planes."""
    spec = port.spec
    shape = spec.shape if port.shape is None else port.shape
    kind = port.element_type or spec.element_type
    start = Flow(where, (spec.name,), kind, shape, "", port.color)
    if shape is None:
        return start
    orders = [step for step in port.steps if isinstance(step, Order)]
    model_layout = _ranked(port.model_layout, spec.shape, where)
    if port.shape is not None:
        layout = _ranked(port.tensor_layout, shape, where)
        if not layout and not orders and len(shape) == len(model_layout):
            layout = model_layout
        return replace(start, layout=layout)
    # Layouts that are all named start from the model's; positions are followed back from it.
    named = orders and all(isinstance(step.wanted, Layout) for step in orders)
    tensor_layout = port.tensor_layout or (port.model_layout if named else None)
    if tensor_layout is None:
        layout = model_layout
        for step in reversed(orders):
            shape, layout = _before(step, shape, layout, where)
        return replace(start, shape=shape, layout=layout)
    rank = len(tensor_layout.replace("...", ""))
    layout = tensor_layout.of_rank(len(shape) if "..." in tensor_layout else rank, where)
    layouts = _layouts(orders, layout, where)
    if model_layout:
        shape = _arranged(shape, model_layout, layouts[-1], where)
    elif len(layouts[-1]) != len(shape):
        raise ArgumentError(
            f"{where}: layout {layouts[-1]} has {len(layouts[-1])} dimensions, the model takes "
            f"{len(shape)}; say the model's with .model().set_layout('NCHW')."
        )
    for step, (earlier, later) in reversed([*zip(orders, pairwise(layouts), strict=True)]):
        if isinstance(step.wanted, Layout):
            shape = _arranged(shape, later, earlier, where)
        else:
            shape = _inverse(step.wanted, shape, where)
    return replace(start, shape=shape, layout=layout)


def _given(port: Port, start: Flow, emit: Emitter) -> list[TensorSpec]:
    """Return the ports of the user's tensor: with its own size, in planes where it is in such."""
    shape, where = start.shape, start.where
    if port.spatial is not None or (port.color is not ColorFormat.UNDEFINED and not port.shape):
        sizes = list(shape or ())
        axes = {letter: axis_of(letter, start.layout, where) for letter in "HW"}
        for letter, size in zip("HW", port.spatial or (), strict=False):
            sizes[axes[letter]] = size
        shape = tuple(sizes)
    shapes, names = [shape], [port.spec.name]
    if port.color is not ColorFormat.UNDEFINED:
        channels, height, width = (axis_of(letter, start.layout, where) for letter in "CHW")
        if port.shape is None or port.planes:
            shapes = [*plane_shapes(port.color, shape or (), (channels, height, width), where)]
    if port.planes:
        names = [emit.name(plane) for plane in port.planes]
    kind = f"tensor({start.element_type})"
    return [
        TensorSpec(name, kind, plane, start.layout)
        for name, plane in zip(names, shapes, strict=True)
    ]


def _layouts(orders: Sequence[Order], layout: str, where: str) -> list[str]:
    """Return what a layout is before each change of order, and after the last."""
    found = [layout]
    for step in orders:
        if isinstance(step.wanted, Layout):
            letters = len(step.wanted.replace("...", ""))
            layout = step.wanted.of_rank(max(len(layout), letters), where)
        elif layout:
            check_order(step.wanted, len(layout), where)
            layout = "".join(layout[i] for i in step.wanted)
        found.append(layout)
    return found


def _before(
    step: Order, shape: tuple[Dimension, ...], layout: str, where: str
) -> tuple[tuple[Dimension, ...], str]:
    """Return what a shape and its layout were before a change of order by positions."""
    if isinstance(step.wanted, Layout):
        raise ArgumentError(
            f"{where}: convert_layout({str(step.wanted)!r}): from which layout? Say it with "
            ".tensor().set_layout('NHWC')."
        )
    inverse = _inverse(step.wanted, shape, where)
    return inverse, "".join(layout[step.wanted.index(i)] for i in range(len(layout)))


def _inverse(order: Sequence[int], shape: Sequence[Dimension], where: str) -> tuple[Dimension, ...]:
    check_order(order, len(shape), where)
    return tuple(shape[order.index(i)] for i in range(len(shape)))


def _arranged(shape: Sequence[Dimension], old: str, new: str, where: str) -> tuple[Dimension, ...]:
    """Return a shape in another layout; what `new` leaves out has to be of size 1."""
    left_out = [i for i, letter in enumerate(old) if len(new) < len(old) and letter not in new]
    for i in left_out:
        if shape[i] != 1:
            raise ArgumentError(
                f"{where}: the tensor's layout {new} is without {old[i]}, which is {shape[i]} in "
                f"the model, not 1. Give it one: {old[i]}{new}."
            )
    rest = [i for i in range(len(old)) if i not in left_out]
    order = permutation("".join(old[i] for i in rest), new, where)
    return tuple(shape[rest[i]] for i in order)


def _ranked(layout: Layout | None, shape: Sequence[Dimension] | None, where: str) -> str:
    if layout is None or shape is None:
        return ""
    return layout.of_rank(len(shape), where)


def _check_fits(flow: Flow, spec: TensorSpec) -> None:
    """Raise ArgumentError if what the steps lead to is not what the model takes."""
    if len(flow.values) > 1 or flow.color not in _TAKEN:
        raise ArgumentError(
            f"{flow.where}: the picture that the model gets is still {flow.color.name}; write "
            ".preprocess().convert_color(ColorFormat.RGB)."
        )
    given, wanted = PartialShape(flow.shape), spec.partial_shape
    if not wanted.compatible(given):
        raise ArgumentError(
            f"{flow.where}: the steps lead to {given}"
            f"{f' ({flow.layout})' if flow.layout else ''}, the model takes {wanted}. "
            "Say what the tensor is with .tensor().set_layout, .set_shape or "
            ".set_spatial_static_shape, what the model takes with .model().set_layout, and use "
            ".resize, .crop or .pad to fit."
        )


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    """Return the node reading and making values under other names: {old: new}."""
    if not any(name in names for name in (*node.reads, *node.outputs)):
        return node
    proto = deepcopy(node.proto)
    _rename(proto, names)
    return Node.from_proto(proto, covers=node.covers)


def _rename(proto: onnx.NodeProto, names: Mapping[str, str]) -> None:
    proto.input[:] = [names.get(name, name) for name in proto.input]
    proto.output[:] = [names.get(name, name) for name in proto.output]
    for _, graph in bodies(proto):
        own = {value.name for value in graph.input} | {t.name for t in graph.initializer}
        own |= {name for node in graph.node for name in node.output}
        outer = {old: new for old, new in names.items() if old not in own}
        for node in graph.node:
            _rename(node, outer)
        for output in graph.output:
            output.name = outer.get(output.name, output.name)
