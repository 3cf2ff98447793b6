"""ONNX's type and shape inference, in a separate process.

ONNX's native code does not validate its input: a slice step of 2**31 - 1, a negative `batch_dims`
or a vector of 2**31 elements crashes or stalls the process that runs it.

Inference ignores the declared shapes of outputs and inner values, because exporters often record
the shapes of a single run, or an empty shape. ONNX Runtime also ignores declared shapes that
differ. Declared element types are used.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from copy import deepcopy
from pathlib import Path
from typing import Final

import onnx
from onnx import onnx_cpp2py_export

from hetero.devices.errors import ModelError
from hetero.devices.model.attributes import bodies, with_bodies
from hetero.devices.model.worker_process import WorkerFailure, WorkerProcess

#: Memory limit of an inference: a constant, and bytes for each byte of the model.
_MEMORY_NBYTES: Final = 2**30
_MEMORY_PER_BYTE: Final = 32
#: Limit of processor time: a constant, and seconds for each byte of the model.
_TIME_S: Final = 5
_TIME_S_PER_BYTE: Final = 2e-5

_WORKER: Final = WorkerProcess(
    "type_inference_worker:infer",
    [str(Path(__file__).parent), str(Path(onnx_cpp2py_export.__file__).parent)],
    isolated=True,
)
#: Worker for models with operators that need our own rules; it imports the complete onnx package.
_WORKER_WITH_RULES: Final = WorkerProcess(
    "type_inference_rules:infer", [str(Path(__file__).parent)]
)
#: Domains and operators that occur only in models that need our own rules.
_RULE_MARKERS: Final = (b"com.microsoft", b"ai.onnx.ml", b"SimplifiedLayerNormalization")

#: Operators with an output like their first input, for which ONNX has no inference function.
_LIKE_INPUT: Final = frozenset(["GroupNormalization", "MeanVarianceNormalization"])
#: Operator -> opset whose inference function is also used for older opsets. Before opset 22, ONNX
#: counted pooling windows that begin in the padding. ONNX Runtime accepts LayerNormalization in
#: every opset. From opset 14 on, inference derives the rank of a Reshape from the number of sizes.
_INFERRED_AS_OPSET: Final = {
    "AveragePool": 22,
    "LayerNormalization": 17,
    "LpPool": 22,
    "MaxPool": 22,
    "Reshape": 14,
}
#: Domain of the functions that wrap nodes in a newer opset.
_NEWER_OPSET_DOMAIN: Final = "hetero.newer"


def without_shape(info: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """Return a copy of a value declaration without the shape of the tensor."""
    copy = deepcopy(info)
    _clear_shape(copy)
    return copy


def clear_declared_shapes(
    graph: onnx.GraphProto, computed_values: Container[str], reliable: Iterable[onnx.ValueInfoProto]
) -> None:
    """Remove, in place, the declared shapes that may be wrong.

    Outputs that are not in `computed_values` (the outputs of nodes) and duplicate outputs are
    removed. `reliable` are declarations to keep.
    """
    keep = {info.name: info for info in reliable}
    outputs = {port.name: port for port in graph.output if port.name in computed_values}
    del graph.output[:]
    graph.output.extend(keep.get(name) or without_shape(port) for name, port in outputs.items())
    nodes = (inner for node in graph.node for inner in with_bodies(node))
    for _, body in (pair for node in nodes for pair in bodies(node)):
        # The first two inputs may be a Loop's count and condition, which are scalars.
        for info in (*body.input[2:], *body.output, *body.value_info):
            _clear_shape(info)


def _clear_shape(info: onnx.ValueInfoProto) -> None:
    if info.type.HasField("tensor_type"):
        info.type.tensor_type.ClearField("shape")


def substitute_uninferable_nodes(model: onnx.ModelProto) -> None:
    """Replace nodes that ONNX infers wrongly or not at all by nodes of the same output type.

    A node that needs the inference function of a newer opset becomes a call of a model function,
    because a function may import another opset than the model.
    """
    opset = next((e.version for e in model.opset_import if e.domain in ("", "ai.onnx")), 0)
    for node in model.graph.node:
        newer = 0 if node.domain else _INFERRED_AS_OPSET.get(node.op_type, 0)
        if node.op_type in _LIKE_INPUT and not node.domain:
            node.CopyFrom(onnx.helper.make_node("Identity", node.input[:1], node.output))
        elif opset < newer:
            reads = list(dict.fromkeys(filter(None, node.input)))
            writes = list(filter(None, node.output))
            function = model.functions.add(
                name=str(len(model.functions)),
                domain=_NEWER_OPSET_DOMAIN,
                input=reads,
                output=writes,
                node=[node],
                opset_import=[onnx.helper.make_opsetid("", newer)],
            )
            node.CopyFrom(
                onnx.helper.make_node(function.name, reads, writes, domain=_NEWER_OPSET_DOMAIN)
            )
    model.opset_import.add(domain=_NEWER_OPSET_DOMAIN, version=1)


def _clear_guessed_sizes(graph: onnx.GraphProto) -> None:
    """Clear the sizes that onnx infers although it cannot know them, in place.

    The last size of Attention's outputs is 0 if it is open. The third size of STFT's output is that
    of a two-sided spectrum if the window gives the length of a frame.
    """
    axes: dict[str, int] = {}
    for node in graph.node:
        if node.op_type == "Attention" and not node.domain:
            axes |= dict.fromkeys(node.output, -1)
        elif node.op_type == "STFT" and len(node.input) < 4:
            axes[node.output[0]] = 2
    if not axes:
        return
    for info in (*graph.value_info, *graph.output):
        sizes = info.type.tensor_type.shape.dim
        axis = axes.get(info.name, 0)
        if axis == 2 and len(sizes) == 4:
            sizes[axis].Clear()
        elif axis == -1 and sizes and sizes[-1].HasField("dim_value") and not sizes[-1].dim_value:
            sizes[-1].Clear()


def infer_types(model: onnx.ModelProto) -> onnx.GraphProto:
    """Return the main graph with the types that ONNX infers.

    Weights may be marked as external. If inference fails while it propagates constant values
    through the graph, it is repeated without. Raises ModelError if types and shapes contradict each
    other, or if ONNX's inference crashes or does not terminate.
    """
    data = model.SerializeToString()
    worker = _WORKER_WITH_RULES if any(name in data for name in _RULE_MARKERS) else _WORKER
    for data_prop in (True, False):
        response = worker.call(
            bytes([data_prop]) + data,
            memory_nbytes=_MEMORY_NBYTES + len(data) * _MEMORY_PER_BYTE,
            time_s=_TIME_S + len(data) * _TIME_S_PER_BYTE,
        )
        if isinstance(response, WorkerFailure):
            continue
        has_failed, content = response[0], response[1:]
        if has_failed:
            raise ModelError(
                f"model {model.graph.name!r}: its shapes and types contradict each other: "
                f"{content.decode(errors='replace')}. Export it again, or run onnx.checker on it."
            )
        typed_model = onnx.ModelProto()
        typed_model.ParseFromString(content)
        _clear_guessed_sizes(typed_model.graph)
        return typed_model.graph
    raise ModelError(
        f"model {model.graph.name!r}: the shape inference of onnx {onnx.__version__} crashes or "
        "does not terminate on this model; an attribute or shape is probably far out of range. Run "
        "onnx.checker on the model, and export it again."
    )
