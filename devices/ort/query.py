"""Queries of ONNX Runtime: a session of each node alone shows whether a provider runs it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np

from hetero.devices.faults.fault import FaultTable, NodeView
from hetero.devices.faults.onnxruntime import NOTES, NOTES_OF_TYPES, faults_of
from hetero.devices.model.model import Constant, Model, Node
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.ort.errors import ERRORS
from hetero.devices.ort.provider import Provider, built_in_providers
from hetero.devices.ort.runtime import VERSION, onnxruntime
from hetero.devices.ort.trial import NodeTrial, try_node
from hetero.devices.ort.versions import lower_versions, newer_operator
from hetero.devices.plugin.node_queries import (
    NUMPY_TYPES,
    CachedQuery,
    NodeQuery,
    QueryProcess,
    Verdict,
    single_node_model,
)
from hetero.devices.plugin.support import Refusal, RefusalCode

#: The lowest operator set that ONNX Runtime guarantees:
#: https://onnxruntime.ai/docs/reference/compatibility.html
LOWEST_OPSET: Final = 7
#: Element types of tensors that Python can pass to ONNX Runtime as arrays.
FEEDABLE: Final = NUMPY_TYPES | {"string"}
#: The session sees constants of integers up to this many elements: shapes, axes, sizes.
_LARGEST_CONSTANT: Final = 64
#: Operators whose support depends on the contents of floating-point constants.
_FLOAT_DEPENDENT: Final = frozenset({"Resize", "Upsample", "Range", "Dropout", "NonMaxSuppression"})
_FAULTS: Final = FaultTable("ONNX Runtime", faults_of(VERSION))


@dataclass(frozen=True, slots=True)
class OrtNodeQuery(NodeQuery):
    """A model of one node, with the node's domain and types."""

    #: The operator's domain.
    domain: str
    #: Types of the node's inputs and outputs.
    input_types: list[str]
    output_types: list[str]


class OrtQuery(CachedQuery[Provider]):
    """Query of a model's nodes; results of equal nodes are cached."""

    def __init__(self) -> None:
        super().__init__(_is_visible, _node_query, WORKER.verdicts)

    def query(self, model: Model, provider: Provider) -> dict[str, Refusal | str]:
        """Return refusals, and notes on nodes that are decomposed or converted, by node name."""
        refusals = {n.name: refusal for n in model.nodes if (refusal := _refusal(n, model))}
        others = (node for node in model.nodes if node.name not in refusals)
        return {**refusals, **self.verdicts(others, model, provider)}


def _refusal(node: Node, model: Model) -> Refusal | None:
    """Return the refusal of a node that needs no session."""
    opset = model.opset_imports.get(node.domain)
    if not node.domain and opset is not None and opset < LOWEST_OPSET:
        return Refusal(
            "opset",
            f"ONNX Runtime runs operator sets from {LOWEST_OPSET} on; the model imports {opset}",
        )
    if newer := newer_operator(node.proto, dict(model.opset_imports)):
        return Refusal("opset", f"ONNX Runtime does not have this operator: {newer}")
    if fault := _FAULTS.refusal(NodeView(node, model)):
        return fault
    outputs = {port.name for port in model.outputs}
    for value in (*node.reads, *node.writes):
        kind = model.spec(value).type
        if not kind:
            if value not in model.consumers and value not in outputs:
                continue  # an optional output without readers
            return Refusal(
                "dtype", f"the type of {value!r} is unknown; ONNX Runtime needs it as an input"
            )
        tensor = re.search(r"\btensor\((\w+)\)", kind)  # also in the type of a sequence or map
        if (not tensor or tensor[1] not in FEEDABLE) and value not in model.constants:
            return Refusal("dtype", f"{value!r} is {kind}, which ONNX Runtime accepts no arrays of")
    return None


def _node_query(node: Node, model: Model, provider: Provider) -> OrtNodeQuery:
    """Return the query of a node: a model of it alone that ONNX Runtime can load."""
    # The CPU provider takes nodes of any size, so nodes that differ only in sizes share a query.
    port = _without_sizes if provider.is_cpu else lambda spec: spec
    alone = lower_versions(single_node_model(node, model, lambda c: _is_visible(c, node), port))
    return OrtNodeQuery(
        node.op_type,
        alone.SerializeToString(deterministic=True),
        0,
        node.domain,
        [model.spec(value).type for value in node.reads],
        [model.spec(value).type for value in node.writes],
    )


def _without_sizes(spec: TensorSpec) -> TensorSpec:
    """Return a spec with open sizes, except those of a vector of integers: they imply a rank."""
    shape = spec.shape
    if shape is not None and (len(shape) != 1 or spec.element_type != "int64"):
        shape = (None,) * len(shape)
    return TensorSpec(spec.name, spec.type, shape)


def _is_visible(constant: Constant, node: Node) -> bool:
    """Return whether the session sees the contents of a constant that `node` reads."""
    array = constant.array
    if array.dtype.kind in "fc":
        return node.op_type in _FLOAT_DEPENDENT and array.size <= _LARGEST_CONSTANT
    return array.size <= _LARGEST_CONSTANT or array.dtype == np.dtype(object)


def query_nodes(rows: Sequence[Sequence[Any]], provider: Sequence[Any]) -> list[Verdict]:
    """Return a provider's verdict on each node; runs in the worker process."""
    target = Provider.from_fields(provider)
    if target.plugin_library is not None:
        target.plugin_library.unregister_namesakes()
    return [_query_node(OrtNodeQuery(*row), target) for row in rows]


#: ONNX Runtime in a separate process, so that its crash becomes a refusal.
WORKER: Final = QueryProcess("ONNX Runtime", query_nodes)


def _query_node(query: OrtNodeQuery, provider: Provider) -> Verdict:
    """Return a provider's verdict on a node, from a session in this process."""
    try:
        session = provider.open_assignment_session(query.data)
        groups = session.get_provider_graph_assignment_info()
    except Exception as error:  # ONNX Runtime raises many types
        return _session_refusal(query, error)
    if any(group.ep_name != provider.name for group in groups):
        return Refusal("no_kernel", f"{provider.name} leaves {query.op_type} to the CPU provider")
    trial = NodeTrial()
    if provider.plugin_library:
        trial = try_node(query.data, query.op_type, provider)
    if trial.failure:
        return Refusal("no_kernel", f"{provider.name} takes {query.op_type}, but {trial.failure}")
    operators = [operator for group in groups for operator in group.get_nodes()]
    if any(operator.name == "node" for operator in operators):
        kernels = _kernel_types() if provider.is_cpu else {}
        types = {*query.input_types, *query.output_types}
        types -= kernels.get((query.domain, query.op_type), frozenset())
        is_cast = kernels and "tensor(float16)" in types
        cast_note = "computed in float32, with casts" if is_cast else None
        return (
            "; ".join(filter(None, (cast_note, trial.note, _value_note(query, provider)))) or None
        )
    parts = ", ".join(dict.fromkeys(operator.op_type for operator in operators))
    return f"decomposed into {parts}" if parts else "eliminated"


def _value_note(query: OrtNodeQuery, provider: Provider) -> str | None:
    """Return the note on special values (NaN, overflow) of a node on the CPU provider."""
    if not provider.is_cpu or query.domain or not query.input_types:
        return None
    if note := NOTES_OF_TYPES.get((query.op_type, query.input_types[0])):
        return note
    reads_floats = any(re.search("float|double", kind) for kind in query.input_types)
    return NOTES.get(query.op_type) if reads_floats else None


#: Patterns of error messages -> code of the refusal; the first match counts.
_CODES: Final[tuple[tuple[str, RefusalCode], ...]] = (
    (r"ValidateOpsetForDomain|opset|Opset|IR version", "opset"),
    (r"is not a registered function/op|No Op registered|No opset import", "no_kernel"),
    (r"Type Error|is invalid|[Dd]ata type|type inference", "dtype"),
)


def _session_refusal(query: OrtNodeQuery, error: Exception) -> Refusal:
    """Return the refusal of a node whose session fails with `error`."""
    message = ERRORS.reason(error)
    op_type = query.op_type
    if "Could not find an implementation" in message:
        if (query.domain, op_type) in _kernel_types():
            types = ", ".join(query.input_types) or "no inputs"
            return Refusal("dtype", f"ONNX Runtime has no {op_type} kernel for {types}")
        return Refusal("no_kernel", f"ONNX Runtime has no {op_type} kernel")
    codes = (c for pattern, c in _CODES if re.search(pattern, message))
    code: RefusalCode = next(codes, "attribute")
    return Refusal(code, f"ONNX Runtime refuses {op_type}: {message}")


@cache
def _kernel_types() -> dict[tuple[str, str], frozenset[str]]:
    """Return the types in the CPU kernels of each (domain, operator); empty if unavailable."""
    if built_in_providers():  # the list of kernels crashes if they are installed
        return {}
    kernel_types: dict[tuple[str, str], set[str]] = {}
    for kernel in onnxruntime.capi.onnxruntime_pybind11_state.get_all_opkernel_def():
        domain = "" if kernel.domain == "ai.onnx" else kernel.domain
        types = kernel_types.setdefault((domain, kernel.op_name), set())
        for names in kernel.type_constraints.values():
            types.update(names)
    return {key: frozenset(types) for key, types in kernel_types.items()}
