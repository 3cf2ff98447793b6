"""What OpenVINO says of each node: each is converted alone, then all are asked about at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import openvino

from hetero.devices.model.model import Constant, Model, Node
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.openvino.errors import ERRORS
from hetero.devices.openvino.limits import Limits, checked_limits
from hetero.devices.openvino.operators import NOTES, refusal, unread
from hetero.devices.openvino.runtime import core
from hetero.devices.plugin.questions import (
    NUMPY_TYPES,
    Question,
    Questions,
    Verdict,
    Verdicts,
    single_node_model,
)
from hetero.devices.plugin.support import Refusal

#: The lowest operator set whose definitions OpenVINO keeps to.
LOWEST_OPSET: Final = 7
#: Constants up to this many elements are shown with their contents.
_SHOWN_ELEMENTS: Final = 4096
#: What is in every model of OpenVINO's besides operators.
_NO_OPERATORS: Final = frozenset({"Parameter", "Constant", "Result"})


@dataclass(frozen=True, slots=True)
class OpenVinoQuestion(Question):
    """A node to ask about."""

    #: Inputs of its model that stand for constants, without their contents.
    weights: list[str]
    #: What ONNX says of the values that it makes: name, type and shape.
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


def verdicts(questions: Sequence[Sequence[Any]], device: str) -> list[Verdict]:
    """Return what one of OpenVINO's devices says of each node; called in a process of its own."""
    asked = [OpenVinoQuestion(*question) for question in questions]
    models = [_converted(question) for question in asked]
    taken = _taken([model for model in models if isinstance(model, openvino.Model)], device)
    return [
        model if isinstance(model, Refusal) else _verdict(question, model, taken, device)
        for question, model in zip(asked, models, strict=True)
    ]


def _converted(question: OpenVinoQuestion) -> openvino.Model | Refusal:
    """Return the node as OpenVINO's operators, or why it is none of its devices'."""
    try:
        model = core().read_model(question.data)
    except RuntimeError as error:
        said = ERRORS.reason(error)
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
        taken: set[str] = set()
        for model in models:
            with suppress(RuntimeError):
                taken.update(core().query_model(model, device))
        return taken


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


#: OpenVINO in a process of its own.
WORKER: Final = Questions("OpenVINO", verdicts)


class OpenVinoQuery(Verdicts[str]):
    """Verdicts of OpenVINO on nodes."""

    def __init__(self) -> None:
        super().__init__(is_shown, OpenVinoQuestion.of, WORKER.verdicts)

    def judge(self, model: Model, device: str, narrow: str) -> dict[str, Refusal | str]:
        """Return refusals, and notes on nodes that are taken, by node name.

        `device`: OpenVINO's; `narrow`: OV_NARROW_INTEGERS.
        """
        limits = checked_limits(model) if narrow == "CHECKED" else Limits()
        ranges = limits.ranges(model)
        found = {}
        for node in model.nodes:
            if known := _known(node, model) or refusal(node, model, narrow == "YES", ranges):
                found[node.name] = known
        heard = self.of((n for n in model.nodes if n.name not in found), model, device)
        return {**(_with_remedies(found, model) if narrow == "NO" else found), **heard}


def _with_remedies(found: Mapping[str, Refusal], model: Model) -> dict[str, Refusal]:
    """Return the refusals, those of integers with what lets OpenVINO have them."""
    told = dict(found)
    of_integers = {n: v for n, v in found.items() if v.code in ("dtype", "policy")}
    if not of_integers:
        return told
    within = checked_limits(model).ranges(model)
    for name, verdict in of_integers.items():
        node = model.nodes[model.index_of[name]]
        if _known(node, model):
            continue
        if refusal(node, model, False, within) is None:
            told[name] = replace(verdict, remedy="OV_NARROW_INTEGERS=CHECKED")
        elif refusal(node, model, True, within) is None:
            told[name] = replace(verdict, remedy="OV_NARROW_INTEGERS=YES")
    return told


def _known(node: Node, model: Model) -> Refusal | None:
    """Return a refusal that OpenVINO need not be asked for."""
    if node.domain:
        return Refusal("no_kernel", f"OpenVINO is not asked about operators of {node.domain}")
    opset = model.opset_imports.get("", LOWEST_OPSET)
    if opset < LOWEST_OPSET:
        return Refusal(
            "opset", f"OpenVINO is right from operator set {LOWEST_OPSET} on; this is {opset}"
        )
    if what := unread(node, opset):
        return Refusal("opset", f"OpenVINO does not know {what}: it came later")
    if node.captures or any(a.HasField("g") or a.graphs for a in node.proto.attribute):
        return Refusal("policy", f"{node.op_type} has a body, which OpenVINO is not asked about")
    for value in (*node.reads, *node.writes):
        spec = model.spec(value)
        unused = value not in model.consumers and all(p.name != value for p in model.outputs)
        if not spec.type and unused:
            continue  # an optional output that nobody reads
        if spec.element_type not in NUMPY_TYPES:
            kind = spec.type or "of unknown type"
            return Refusal("dtype", f"{value!r} is {kind}, which OpenVINO takes no arrays of")
        if spec.shape is None:
            return Refusal("dynamic_shape", f"{value!r} has an open number of dimensions")
    return None
