"""Asking OpenVINO about nodes: each is converted alone, then all are asked about at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import openvino

from devices.model.model import Constant, Model, Node
from devices.model.tensor_spec import TensorSpec
from devices.openvino.operators import NOTES
from devices.openvino.runtime import core
from devices.plugin.failures import reason_of
from devices.plugin.questions import Question, Verdict, packed
from devices.plugin.single_node import single_node_model
from devices.plugin.support import Refusal

#: Constants up to this many elements are shown with their contents.
_SHOWN_ELEMENTS: Final = 4096
#: What is in every model of OpenVINO's besides operators.
_NO_OPERATORS: Final = frozenset({"Parameter", "Constant", "Result"})


@dataclass(frozen=True, slots=True)
class OpenVinoQuestion(Question):
    """A node to ask about.

    Attributes
    ----------
    weights : list of str
        Inputs of its model that stand for constants, without their contents.
    outputs : list of (str, str, shape)
        What ONNX says of the values that it makes: name, type and shape.
    """

    weights: list[str]
    outputs: list[tuple[str, str, list[int | str | None] | None]]

    @classmethod
    def of(cls, node: Node, model: Model, device: str) -> OpenVinoQuestion:
        """Return the question about a node of a model, the same for each device."""
        proto = single_node_model(node, model, lambda c: is_shown(c, node), lambda spec: spec)
        hidden = {
            f"v{i}": model.constants[value].array.nbytes
            for i, value in enumerate(node.reads)
            if value in model.constants and not is_shown(model.constants[value], node)
        }
        specs = [model.spec(v) for v in node.writes if model.spec(v).type]
        return cls(
            node.op_type,
            proto.SerializeToString(deterministic=True),
            sum(hidden.values()),
            list(hidden),
            [(s.name, s.type, None if s.shape is None else list(s.shape)) for s in specs],
        )


def is_shown(constant: Constant, node: Node) -> bool:
    """Whether OpenVINO is shown the contents of a constant that a node reads."""
    return constant.array.size <= _SHOWN_ELEMENTS


def verdicts(questions: Sequence[Sequence[Any]], device: str) -> list[Any]:
    """Return what one of OpenVINO's devices says of each node; called in a process of its own."""
    asked = [OpenVinoQuestion(*question) for question in questions]
    models = [_converted(question) for question in asked]
    taken = _taken([model for model in models if isinstance(model, openvino.Model)], device)
    return [
        packed(model if isinstance(model, Refusal) else _verdict(question, model, taken, device))
        for question, model in zip(asked, models, strict=True)
    ]


def _converted(question: OpenVinoQuestion) -> openvino.Model | Refusal:
    """Return the node as OpenVINO's operators, or why it is none of its devices'."""
    try:
        model = core().read_model(question.data)
    except RuntimeError as error:
        said = reason_of(error)
        return Refusal("no_kernel", f"OpenVINO cannot convert {question.op_type}: {said}")
    _put_weights(model, question.weights)
    specs = [TensorSpec(n, t, None if s is None else tuple(s)) for n, t, s in question.outputs]
    for port, spec in zip(model.outputs, specs, strict=True):
        if port.get_partial_shape().rank.is_dynamic:
            return Refusal(
                "dynamic_shape", f"OpenVINO knows no rank of what {question.op_type} makes"
            )
        if wrong := _wrong(port, spec):
            return Refusal("attribute", f"OpenVINO makes {wrong} of {question.op_type}")
    return model


def _taken(models: Sequence[openvino.Model], device: str) -> set[str]:
    """Return the names of the operators that a device takes, made distinct over all models."""
    if not models:
        return set()
    for i, model in enumerate(models):
        for operator in model.get_ops():
            operator.set_friendly_name(f"{i}/{operator.get_friendly_name()}")
    results = [result for model in models for result in model.get_results()]
    parameters = [parameter for model in models for parameter in model.get_parameters()]
    try:
        return set(core().query_model(openvino.Model(results, parameters, "nodes"), device))
    except RuntimeError:  # one spoils it for all
        if len(models) == 1:
            return set()
        return {name for model in models for name in _taken_alone(model, device)}


def _taken_alone(model: openvino.Model, device: str) -> set[str]:
    try:
        return set(core().query_model(model, device))
    except RuntimeError:
        return set()


def _verdict(
    question: OpenVinoQuestion, model: openvino.Model, taken: set[str], device: str
) -> Verdict:
    operators = [op for op in model.get_ordered_ops() if op.get_type_name() not in _NO_OPERATORS]
    kinds = list(dict.fromkeys(op.get_type_name() for op in operators))
    refused = [op.get_type_name() for op in operators if op.get_friendly_name() not in taken]
    if refused:
        return Refusal(
            "no_kernel", f"OpenVINO's {device} has no {refused[0]} for {question.op_type}"
        )
    if question.op_type in NOTES:
        return NOTES[question.op_type]
    if not kinds:
        return "folded"
    return f"decomposed into {', '.join(kinds)}" if len(operators) > 1 else None


def _put_weights(model: openvino.Model, names: Collection[str]) -> None:
    """Make constants of inputs that stand for weights; their contents are never touched."""
    for parameter in model.get_parameters():
        if parameter.get_friendly_name() in names:
            shape = tuple(parameter.get_output_partial_shape(0).to_shape())
            dtype = parameter.get_output_element_type(0).to_dtype()
            # The constant keeps the array; one made of a tensor would not keep the tensor's.
            zeros = openvino.op.Constant(np.zeros(shape, dtype), shared_memory=True)
            parameter.output(0).replace(zeros.output(0))
            model.remove_parameter(parameter)


def _wrong(port: openvino.Output, spec: TensorSpec) -> str | None:
    """Return the type or shape that OpenVINO gives a value where it contradicts ONNX's, or None."""
    kind, shape = port.get_element_type(), port.get_partial_shape()
    fits = spec.shape is None or len(shape) == len(spec.shape)
    for got, want in zip(shape, spec.shape or (), strict=False):
        fits &= got.is_dynamic or not isinstance(want, int) or got.get_length() == want
    if fits and kind.to_dtype() == spec.dtype:
        return None
    return f"{kind.to_string()}{shape.to_string()}, not {spec},"
