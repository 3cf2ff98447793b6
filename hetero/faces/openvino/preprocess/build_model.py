"""Building of the model with preprocessing and postprocessing nodes."""

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
from hetero.faces.openvino.preprocess.color_format import ColorFormat, plane_shapes
from hetero.faces.openvino.preprocess.emitter import Emitter, Flow
from hetero.faces.openvino.preprocess.layout import Layout, axis_of, permutation
from hetero.faces.openvino.preprocess.tensor_steps import (
    Order,
    Step,
    check_order,
    convert_element_type,
    to_layout,
)

#: Color formats of model inputs.
_MODEL_FORMATS: Final = (ColorFormat.UNDEFINED, ColorFormat.RGB, ColorFormat.BGR, ColorFormat.GRAY)


@dataclass
class Port:
    """Description of a port: the user's tensor, the steps, and the model's layout."""

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
    """Return the model with the steps of its ports; see `PrePostProcessor.build`."""
    emit = Emitter(model)
    ports: list[TensorSpec] = []
    names: dict[str, str] = {}
    for spec in model.inputs:
        new_ports, new_name = [spec], spec.name
        if spec.name in inputs:
            new_ports, new_name = _input(inputs[spec.name], emit)
        ports += new_ports
        if new_name != spec.name:
            if any(port.name == spec.name for port in model.outputs):
                raise ArgumentError(
                    f"input {spec.name!r} is also an output of the model and cannot be changed; "
                    "insert an Identity node before that output."
                )
            names[spec.name] = new_name
    input_nodes = list(emit.nodes)
    results: dict[str, TensorSpec] = {}
    for name, port in outputs.items():
        raw = emit.name(f"{name}/model")
        results[name], has_steps = _output(port, raw, emit)
        if has_steps:
            if name not in model.producers:
                raise ArgumentError(
                    f"output {name!r} is an input or a constant; insert an Identity node before "
                    "it to postprocess it."
                )
            names[name] = raw
    if emit.needs > emit.opset:
        return build(upgrade_opset(model, emit.needs), inputs, outputs)
    nodes = [renamed_node(node, names) for node in model.nodes]
    return model.replace(
        nodes=[*input_nodes, *nodes, *emit.nodes[len(input_nodes) :]],
        inputs=ports,
        outputs=[results.get(spec.name, spec) for spec in model.outputs],
        constants=dict(model.constants) | emit.constants,
    )


def start_of_input(port: Port, emit: Emitter) -> tuple[list[TensorSpec], Flow]:
    """Return the ports that replace an input, and the user's tensor before the steps."""
    spec, label = port.spec, f"input {port.spec.name!r}"
    if not spec.is_tensor:
        raise ArgumentError(f"{label}: expected a tensor to preprocess, got {spec.type}.")
    emit.prefix = spec.name
    is_image = port.color is not ColorFormat.UNDEFINED and len(spec.shape or ()) == 4
    if is_image and port.tensor_layout is None:
        # As in OpenVINO, an image without a layout is NHWC.
        nhwc = Layout("NHWC")
        port = replace(port, tensor_layout=nhwc, model_layout=port.model_layout or nhwc)
    start = _start(port, label)
    ports = _user_ports(port, start, emit)
    orders = [step for step in port.steps if isinstance(step, Order)]
    model_layout = _layout_letters(port.model_layout, spec.shape, label)
    if port.model_layout is None:  # the steps' result is passed on unchanged
        model_layout = _layouts(orders, start.layout, label)[-1]
    values = tuple(p.name for p in ports)
    return ports, replace(
        start, values=values, shape=ports[0].shape, model=(spec.shape, model_layout)
    )


def _input(port: Port, emit: Emitter) -> tuple[list[TensorSpec], str]:
    """Emit an input's steps; return the ports that replace it, and the tensor for the model."""
    spec = port.spec
    ports, flow = start_of_input(port, emit)
    model_layout = flow.model[1]
    for step in port.steps:
        flow = step(flow, emit)
    flow = convert_element_type(flow, emit, spec.element_type)
    if model_layout and flow.layout and len(flow.values) == 1:
        flow = to_layout(flow, model_layout, emit)
    _check_fits(flow, spec)
    return ports, flow.value


def start_of_output(port: Port, raw: str) -> Flow:
    """Return the model's tensor `raw` before the steps of an output."""
    spec, label = port.spec, f"output {port.spec.name!r}"
    if not spec.is_tensor:
        raise ArgumentError(f"{label}: expected a tensor to postprocess, got {spec.type}.")
    layout = _layout_letters(port.model_layout, spec.shape, label)
    return Flow(label, (raw,), spec.element_type, spec.shape, layout)


def _output(port: Port, raw: str, emit: Emitter) -> tuple[TensorSpec, bool]:
    """Emit an output's steps after `raw`; return the port, and whether there are steps."""
    spec, label = port.spec, f"output {port.spec.name!r}"
    emit.prefix = spec.name
    flow = start_of_output(port, raw)
    for step in port.steps:
        flow = step(flow, emit)
    flow = convert_element_type(flow, emit, port.element_type or flow.element_type)
    if port.tensor_layout and flow.layout:
        flow = Order(port.tensor_layout)(flow, emit)
    layout = flow.layout or _layout_letters(port.tensor_layout, flow.shape, label)
    tensor_spec = TensorSpec(spec.name, f"tensor({flow.element_type})", flow.shape, layout)
    if flow.value == raw:
        return tensor_spec, False
    last = emit.nodes[-1]
    emit.nodes[-1] = renamed_node(last, {last.outputs[0]: spec.name})
    return tensor_spec, True


def _start(port: Port, label: str) -> Flow:
    """Return the user's tensor as implied by the model, without its own size and planes."""
    spec = port.spec
    shape = spec.shape if port.shape is None else port.shape
    kind = port.element_type or spec.element_type
    start = Flow(label, (spec.name,), kind, shape, "", port.color)
    if shape is None:
        return start
    orders = [step for step in port.steps if isinstance(step, Order)]
    model_layout = _layout_letters(port.model_layout, spec.shape, label)
    if port.shape is not None:
        layout = _layout_letters(port.tensor_layout, shape, label)
        if not layout and not orders and len(shape) == len(model_layout):
            layout = model_layout
        return replace(start, layout=layout)
    # Steps with only layouts start from the model's layout; positions are inverted from it.
    all_layouts = orders and all(isinstance(step.target, Layout) for step in orders)
    tensor_layout = port.tensor_layout or (port.model_layout if all_layouts else None)
    if tensor_layout is None:
        layout = model_layout
        for step in reversed(orders):
            shape, layout = _shape_before(step, shape, layout, label)
        return replace(start, shape=shape, layout=layout)
    rank = len(tensor_layout.replace("...", ""))
    layout = tensor_layout.of_rank(len(shape) if "..." in tensor_layout else rank, label)
    layouts = _layouts(orders, layout, label)
    if model_layout:
        shape = _permuted_shape(shape, model_layout, layouts[-1], label)
    elif len(layouts[-1]) != len(shape):
        raise ArgumentError(
            f"{label}: layout {layouts[-1]} has {len(layouts[-1])} dimensions, but the model's "
            f"input has {len(shape)}; set its layout with .model().set_layout('NCHW')."
        )
    for step, (earlier, later) in reversed([*zip(orders, pairwise(layouts), strict=True)]):
        if isinstance(step.target, Layout):
            shape = _permuted_shape(shape, later, earlier, label)
        else:
            shape = _inverse(step.target, shape, label)
    return replace(start, shape=shape, layout=layout)


def _user_ports(port: Port, start: Flow, emit: Emitter) -> list[TensorSpec]:
    """Return the ports of the user's tensor, with its own size, and one for each plane."""
    shape, label = start.shape, start.label
    if port.spatial is not None or (port.color is not ColorFormat.UNDEFINED and not port.shape):
        sizes = list(shape or ())
        axes = {letter: axis_of(letter, start.layout, label) for letter in "HW"}
        for letter, size in zip("HW", port.spatial or (), strict=False):
            sizes[axes[letter]] = size
        shape = tuple(sizes)
    shapes, names = [shape], [port.spec.name]
    if port.color is not ColorFormat.UNDEFINED:
        channels, height, width = (axis_of(letter, start.layout, label) for letter in "CHW")
        if port.shape is None or port.planes:
            shapes = [*plane_shapes(port.color, shape or (), (channels, height, width), label)]
    if port.planes:
        names = [emit.name(plane) for plane in port.planes]
    kind = f"tensor({start.element_type})"
    return [
        TensorSpec(name, kind, plane, start.layout)
        for name, plane in zip(names, shapes, strict=True)
    ]


def _layouts(orders: Sequence[Order], layout: str, label: str) -> list[str]:
    """Return the layouts before each permutation, and after the last."""
    layouts = [layout]
    for step in orders:
        if isinstance(step.target, Layout):
            letters = len(step.target.replace("...", ""))
            layout = step.target.of_rank(max(len(layout), letters), label)
        elif layout:
            check_order(step.target, len(layout), label)
            layout = "".join(layout[i] for i in step.target)
        layouts.append(layout)
    return layouts


def _shape_before(
    step: Order, shape: tuple[Dimension, ...], layout: str, label: str
) -> tuple[tuple[Dimension, ...], str]:
    """Return the shape and layout before a permutation by positions."""
    if isinstance(step.target, Layout):
        raise ArgumentError(
            f"{label}: convert_layout({str(step.target)!r}) needs the tensor's layout; set it "
            "with .tensor().set_layout('NHWC')."
        )
    inverse = _inverse(step.target, shape, label)
    return inverse, "".join(layout[step.target.index(i)] for i in range(len(layout)))


def _inverse(order: Sequence[int], shape: Sequence[Dimension], label: str) -> tuple[Dimension, ...]:
    check_order(order, len(shape), label)
    return tuple(shape[order.index(i)] for i in range(len(shape)))


def _permuted_shape(
    shape: Sequence[Dimension], old: str, new: str, label: str
) -> tuple[Dimension, ...]:
    """Return a shape in another layout; dimensions that `new` lacks must have size 1."""
    omitted = [i for i, letter in enumerate(old) if len(new) < len(old) and letter not in new]
    for i in omitted:
        if shape[i] != 1:
            raise ArgumentError(
                f"{label}: the tensor's layout {new} has no {old[i]}, which has size {shape[i]} "
                f"in the model, not 1. Use the layout {old[i]}{new}."
            )
    remaining = [i for i in range(len(old)) if i not in omitted]
    order = permutation("".join(old[i] for i in remaining), new, label)
    return tuple(shape[remaining[i]] for i in order)


def _layout_letters(layout: Layout | None, shape: Sequence[Dimension] | None, label: str) -> str:
    if layout is None or shape is None:
        return ""
    return layout.of_rank(len(shape), label)


def _check_fits(flow: Flow, spec: TensorSpec) -> None:
    """Raise ArgumentError if the steps' result does not fit the model's input."""
    if len(flow.values) > 1 or flow.color not in _MODEL_FORMATS:
        raise ArgumentError(
            f"{flow.label}: the model cannot process {flow.color.name}; add "
            ".preprocess().convert_color(ColorFormat.RGB)."
        )
    shape, model_shape = PartialShape(flow.shape), spec.partial_shape
    if not model_shape.compatible(shape):
        raise ArgumentError(
            f"{flow.label}: the steps result in {shape}"
            f"{f' ({flow.layout})' if flow.layout else ''}, but the model expects {model_shape}. "
            "Describe the tensor with .tensor().set_layout, .set_shape or "
            ".set_spatial_static_shape, and the model with .model().set_layout; use .resize, "
            ".crop or .pad to fit."
        )


def renamed_node(node: Node, names: Mapping[str, str]) -> Node:
    """Return the node with renamed inputs and outputs: {old: new}."""
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
