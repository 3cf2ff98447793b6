"""Description of preprocessing and postprocessing steps as text, as OpenVINO prints them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hetero.devices.errors import ArgumentError
from hetero.devices.model.element_type import Type
from hetero.devices.model.model import Model
from hetero.devices.model.partial_shape import PartialShape
from hetero.faces.openvino.preprocess.build_model import Port, start_of_input, start_of_output
from hetero.faces.openvino.preprocess.color_format import ColorFormat
from hetero.faces.openvino.preprocess.emitter import Emitter, Flow
from hetero.faces.openvino.preprocess.layout import Layout
from hetero.faces.openvino.preprocess.tensor_steps import Order, Step, convert_element_type


def describe(model: Model, inputs: Mapping[str, Port], outputs: Mapping[str, Port]) -> str:
    """Return one block of lines for each port with a description, in the model's order."""
    lines: list[str] = []
    for spec in model.inputs:
        if spec.name in inputs:
            lines += _input_lines(inputs[spec.name], Emitter(model))
    for spec in model.outputs:
        if spec.name in outputs:
            lines += _output_lines(outputs[spec.name], Emitter(model))
    return "\n".join(lines)


def _input_lines(port: Port, emit: Emitter) -> Iterable[str]:
    color = "" if port.color is ColorFormat.UNDEFINED else f" (color {port.color.name})"
    yield f'Input "{port.spec.name}"{color}:'
    try:
        _, start = start_of_input(port, emit)
    except ArgumentError as error:
        yield f"    Error: {error}"
        return
    shape, layout = start.model
    expected = Flow("", ("",), port.spec.element_type, shape, layout)
    yield f"    User's input tensor: {_type_text(replace(start, color=ColorFormat.UNDEFINED))}"
    yield f"    Model's expected tensor: {_type_text(expected)}"
    implicit: list[Step] = []
    if port.model_layout and _layout_after(port.steps, start.layout) not in ("", layout):
        implicit.append(Order(port.model_layout))
    flow, lines = _step_lines("Pre-processing steps", port.steps, start, emit)
    yield from lines
    if flow is not None and flow.element_type != port.spec.element_type:
        conversion = partial(convert_element_type, element_type=port.spec.element_type)
        implicit.insert(0, conversion)
    yield from _step_lines("Implicit pre-processing steps", implicit, flow, emit)[1]


def _output_lines(port: Port, emit: Emitter) -> Iterable[str]:
    yield f'Output "{port.spec.name}":'
    try:
        start = start_of_output(port, port.spec.name)
    except ArgumentError as error:
        yield f"    Error: {error}"
        return
    yield f"    Model's data tensor: {_type_text(start)}"
    flow, lines = _step_lines("Post-processing steps", port.steps, start, emit)
    yield from lines
    implicit: list[Step] = []
    if flow is not None and port.element_type not in ("", flow.element_type):
        implicit.append(partial(convert_element_type, element_type=port.element_type))
    if flow is not None and port.tensor_layout and flow.layout not in ("", port.tensor_layout):
        implicit.append(Order(port.tensor_layout))
    flow, lines = _step_lines("Post-processing implicit steps", implicit, flow, emit)
    yield from lines
    if flow is not None:
        yield f"    User's output tensor: {_type_text(flow)}"


def _step_lines(
    title: str, steps: Sequence[Step], flow: Flow | None, emit: Emitter
) -> tuple[Flow | None, list[str]]:
    """Return the tensor after steps, and a line for each; None after a step that is invalid."""
    if not steps or flow is None:
        return flow, []
    lines = [f"    {title} ({len(steps)}):"]
    for step in steps:
        before = _type_text(flow)
        try:
            flow = step(flow, emit)
        except ArgumentError as error:
            return None, [*lines, f"      {_step_text(step)}: ({before}) -> Error: {error}"]
        lines.append(f"      {_step_text(step)}: ({before}) -> ({_type_text(flow)})")
    return flow, lines


def _layout_after(steps: Sequence[Step], layout: str) -> str:
    """Return the layout after the permutations of `steps`."""
    for step in steps:
        if isinstance(step, Order):
            target = step.target
            layout = target if isinstance(target, str) else "".join(layout[i] for i in target)
    return layout


def _step_text(step: Step) -> str:
    if isinstance(step, Order):
        target = step.target
        text = target.to_string() if isinstance(target, Layout) else f"({_numbers(target)})"
        return f"convert layout {text}"
    options: dict[str, Any] = step.keywords if isinstance(step, partial) else {}
    name = step.func.__name__ if isinstance(step, partial) else getattr(step, "__name__", "")
    match name:
        case "convert_element_type":
            return f"convert type ({Type(options['element_type']).type_name})"
        case "arithmetic":
            kind = "mean" if options["op_type"] == "Sub" else "scale"
            return f"{kind} ({_numbers(options['numbers'])})"
        case "resize" if options["height"] is None:
            return "resize to model width/height"
        case "resize":
            return f"resize to ({options['height']}, {options['width']})"
        case "convert_color":
            return f"convert color ({options['color'].name})"
        case "crop":
            return f"crop ([{_numbers(options['begin'])}],[{_numbers(options['end'])}])"
        case "pad":
            begin, end = _numbers(options["begin"]), _numbers(options["end"])
            return f"pad(begin ({begin}), end ({end}), with ({_numbers([options['number']])}))"
    return name.replace("_", " ")


def _numbers(numbers: Iterable[float]) -> str:
    return ",".join(f"{number:g}" for number in numbers)


def _type_text(flow: Flow) -> str:
    layout = Layout(flow.layout).to_string() if flow.layout else "<no layout>"
    color = "" if flow.color is ColorFormat.UNDEFINED else f", {flow.color.name}"
    return f"{PartialShape(flow.shape)}, {layout}, {Type(flow.element_type).type_name}{color}"
