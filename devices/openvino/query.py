"""Queries of OpenVINO: each node is converted alone, then one device query covers all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import openvino

from hetero.devices.faults.openvino import NOTES, newer_feature, refusal
from hetero.devices.model.model import Constant, Model, Node
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.openvino.errors import ERRORS
from hetero.devices.openvino.input_limits import InputLimits, find_limits
from hetero.devices.openvino.runtime import core
from hetero.devices.plugin.node_queries import (
    NUMPY_TYPES,
    CachedQuery,
    NodeQuery,
    QueryProcess,
    Verdict,
    single_node_model,
)
from hetero.devices.plugin.support import Refusal

#: The lowest operator set whose definitions OpenVINO follows.
LOWEST_OPSET: Final = 7
#: OpenVINO sees the contents of constants up to this many elements.
_LARGEST_CONSTANT: Final = 4096
#: Types of nodes in OpenVINO's models that do not compute.
_PASSIVE_TYPES: Final = frozenset({"Parameter", "Constant", "Result"})


@dataclass(frozen=True, slots=True)
class OpenVinoNodeQuery(NodeQuery):
    """A model of one node, with its hidden weights and its expected outputs."""

    #: Inputs of the model that replace constants whose contents OpenVINO does not see.
    weights: list[str]
    #: Names, types and shapes of the outputs by ONNX's inference.
    outputs: list[tuple[str, str, list[int | str | None] | None]]

    @classmethod
    def of(cls, node: Node, model: Model, device: str) -> OpenVinoNodeQuery:
        """Create the query of a node; it does not depend on the device."""
        proto = single_node_model(node, model, lambda c: is_visible(c, node), lambda spec: spec)
        hidden = {
            f"v{i}": model.constants[value].array.nbytes
            for i, value in enumerate(node.reads)
            if value in model.constants and not is_visible(model.constants[value], node)
        }
        specs = [model.spec(v) for v in node.writes if model.spec(v).type]
        return cls(
            node.op_type,
            proto.SerializeToString(deterministic=True),
            sum(hidden.values()),
            list(hidden),
            [(s.name, s.type, None if s.shape is None else list(s.shape)) for s in specs],
        )


def is_visible(constant: Constant, node: Node) -> bool:
    """Return whether OpenVINO sees the contents of a constant that `node` reads."""
    return constant.array.size <= _LARGEST_CONSTANT


def query_nodes(rows: Sequence[Sequence[Any]], device: str) -> list[Verdict]:
    """Return a device's verdict on each node; runs in the worker process."""
    queries = [OpenVinoNodeQuery(*row) for row in rows]
    models = [_convert(query) for query in queries]
    supported = _supported_operators(
        [model for model in models if isinstance(model, openvino.Model)], device
    )
    return [
        model if isinstance(model, Refusal) else _verdict(query, model, supported, device)
        for query, model in zip(queries, models, strict=True)
    ]


def _convert(query: OpenVinoNodeQuery) -> openvino.Model | Refusal:
    """Convert a query's model; return the refusal if OpenVINO cannot or contradicts ONNX."""
    try:
        model = core().read_model(query.data)
    except RuntimeError as error:
        reason = ERRORS.reason(error)
        return Refusal("no_kernel", f"OpenVINO cannot convert {query.op_type}: {reason}")
    _replace_hidden_weights(model, query.weights)
    specs = [TensorSpec(n, t, None if s is None else tuple(s)) for n, t, s in query.outputs]
    for port, spec in zip(model.outputs, specs, strict=True):
        if port.get_partial_shape().rank.is_dynamic:
            return Refusal(
                "dynamic_shape", f"OpenVINO does not infer the rank of {query.op_type}'s output"
            )
        if actual := _contradiction(port, spec):
            return Refusal(
                "attribute",
                f"{query.op_type}: expected output {spec} as by ONNX, got {actual} in OpenVINO",
            )
    return model


def _supported_operators(models: Sequence[openvino.Model], device: str) -> set[str]:
    """Rename the operators of all models uniquely; return the names that a device supports."""
    if not models:
        return set()
    for i, model in enumerate(models):
        for operator in model.get_ops():
            operator.set_friendly_name(f"{i}/{operator.get_friendly_name()}")
    results = [result for model in models for result in model.get_results()]
    parameters = [parameter for model in models for parameter in model.get_parameters()]
    try:
        return set(core().query_model(openvino.Model(results, parameters, "nodes"), device))
    except RuntimeError:  # one model makes the query of all fail
        supported: set[str] = set()
        for model in models:
            with suppress(RuntimeError):
                supported.update(core().query_model(model, device))
        return supported


def _verdict(
    query: OpenVinoNodeQuery, model: openvino.Model, supported: set[str], device: str
) -> Verdict:
    """Return the verdict on a node whose converted model is `model`."""
    operators = [op for op in model.get_ordered_ops() if op.get_type_name() not in _PASSIVE_TYPES]
    kinds = list(dict.fromkeys(op.get_type_name() for op in operators))
    missing = [op.get_type_name() for op in operators if op.get_friendly_name() not in supported]
    if missing:
        return Refusal("no_kernel", f"OpenVINO's {device} has no {missing[0]} for {query.op_type}")
    if query.op_type in NOTES:
        return NOTES[query.op_type]
    if not kinds:
        return "folded"
    return f"decomposed into {', '.join(kinds)}" if len(operators) > 1 else None


def _replace_hidden_weights(model: openvino.Model, names: Collection[str]) -> None:
    """Replace inputs by constants of zeros, which share memory that is never written."""
    for parameter in model.get_parameters():
        if parameter.get_friendly_name() in names:
            shape = tuple(parameter.get_output_partial_shape(0).to_shape())
            dtype = parameter.get_output_element_type(0).to_dtype()
            # A constant owns a reference to its array; it would not own one to a tensor.
            zeros = openvino.op.Constant(np.zeros(shape, dtype), shared_memory=True)
            parameter.output(0).replace(zeros.output(0))
            model.remove_parameter(parameter)


def _contradiction(port: openvino.Output, spec: TensorSpec) -> str | None:
    """Return OpenVINO's type and shape of a value if they contradict ONNX's, or None."""
    kind, shape = port.get_element_type(), port.get_partial_shape()
    fits = spec.shape is None or len(shape) == len(spec.shape)
    for actual, expected in zip(shape, spec.shape or (), strict=False):
        fits &= (
            actual.is_dynamic or not isinstance(expected, int) or actual.get_length() == expected
        )
    if fits and kind.to_dtype() == spec.dtype:
        return None
    return f"{kind.to_string()}{shape.to_string()}"


#: OpenVINO in a separate process, so that its crash becomes a refusal.
WORKER: Final = QueryProcess("OpenVINO", query_nodes)


class OpenVinoQuery(CachedQuery[str]):
    """Query of a model's nodes; results of equal nodes are cached."""

    def __init__(self) -> None:
        super().__init__(is_visible, OpenVinoNodeQuery.of, WORKER.verdicts)

    def query(self, model: Model, device: str, narrow: str) -> dict[str, Refusal | str]:
        """Return refusals, and notes on supported nodes, by node name.

        `device`: OpenVINO's device; `narrow`: the value of OV_NARROW_INTEGERS.
        """
        limits = find_limits(model) if narrow == "CHECKED" else InputLimits()
        ranges = limits.ranges(model)
        refusals = {}
        for node in model.nodes:
            reason = _static_refusal(node, model) or refusal(node, model, narrow == "YES", ranges)
            if reason:
                refusals[node.name] = reason
        verdicts = self.verdicts((n for n in model.nodes if n.name not in refusals), model, device)
        return {**(_with_remedies(refusals, model) if narrow == "NO" else refusals), **verdicts}


def _with_remedies(refusals: Mapping[str, Refusal], model: Model) -> dict[str, Refusal]:
    """Return the refusals; those of integers name the OV_NARROW_INTEGERS that lifts them."""
    results = dict(refusals)
    candidates = {n: r for n, r in refusals.items() if r.code in ("dtype", "policy")}
    if not candidates:
        return results
    ranges = find_limits(model).ranges(model)
    for name, reason in candidates.items():
        node = model.nodes[model.index_of[name]]
        if _static_refusal(node, model):
            continue
        if refusal(node, model, False, ranges) is None:
            results[name] = replace(reason, remedy="OV_NARROW_INTEGERS=CHECKED")
        elif refusal(node, model, True, ranges) is None:
            results[name] = replace(reason, remedy="OV_NARROW_INTEGERS=YES")
    return results


def _static_refusal(node: Node, model: Model) -> Refusal | None:
    """Return the refusal of a node that needs no query of OpenVINO."""
    if node.domain:
        return Refusal("no_kernel", f"device OV does not support operators of domain {node.domain}")
    opset = model.opset_imports.get("", LOWEST_OPSET)
    if opset < LOWEST_OPSET:
        return Refusal(
            "opset",
            f"OpenVINO runs operator sets from {LOWEST_OPSET} on; the model imports {opset}",
        )
    if feature := newer_feature(node, opset):
        return Refusal("opset", f"OpenVINO ignores {feature}, which is newer than its frontend")
    if node.captures or any(a.HasField("g") or a.graphs for a in node.proto.attribute):
        return Refusal("policy", f"{node.op_type} has a body, which device OV does not support")
    for value in (*node.reads, *node.writes):
        spec = model.spec(value)
        unused = value not in model.consumers and all(p.name != value for p in model.outputs)
        if not spec.type and unused:
            continue  # an optional output without readers
        if spec.element_type not in NUMPY_TYPES:
            kind = spec.type or "of unknown type"
            return Refusal("dtype", f"{value!r} is {kind}, which OpenVINO accepts no arrays of")
        if spec.shape is None:
            return Refusal("dynamic_shape", f"the rank of {value!r} is unknown")
    return None
