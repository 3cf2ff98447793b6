"""ONNX's type and shape inference, in a process of its own.

The native code behind it trusts what it is given: a slice's step of 2**31 - 1, a negative
`batch_dims` or a vector of 2**31 elements ends or stalls the process that asks.

Declared shapes of outputs and inner values are hints: types are inferred without them. Exporters
write them for one run, or not at all (`[]`); ONNX Runtime too takes no notice of those that differ.
Element types stay.
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
from hetero.devices.model.worker_process import Ended, WorkerProcess

#: Memory for inference beyond a fixed multiple of the model's size, in bytes.
_MEMORY_NBYTES: Final = 2**30
_MEMORY_PER_BYTE: Final = 32
#: Processor time for a model, in seconds, and more for each byte of it.
_TIME_S: Final = 5
_TIME_S_PER_BYTE: Final = 2e-5

_WORKER: Final = WorkerProcess(
    "type_inference_worker:infer",
    [str(Path(__file__).parent), str(Path(onnx_cpp2py_export.__file__).parent)],
    isolated=True,
)
#: The same for models with operators that onnx has no rules for, which takes all of onnx.
_WITH_RULES: Final = WorkerProcess("type_inference_rules:infer", [str(Path(__file__).parent)])
_RULED: Final = (b"com.microsoft", b"ai.onnx.ml", b"SimplifiedLayerNormalization")

#: What is made like the first input, which ONNX's inference does not say of them.
_LIKE_INPUT: Final = frozenset(["GroupNormalization", "MeanVarianceNormalization"])
#: Operators of which older operator sets are inferred as a newer one is. Windows that would begin
#: in the padding were counted until 22; ONNX Runtime has LayerNormalization in all; from 14 on the
#: number of sizes tells the rank, whatever the sizes.
_AS_IN: Final = {
    "AveragePool": 22,
    "LayerNormalization": 17,
    "LpPool": 22,
    "MaxPool": 22,
    "Reshape": 14,
}
_NEWER: Final = "hetero.newer"


def without_shape(info: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """Return a copy of a declaration that leaves the shape of a tensor open."""
    copy = deepcopy(info)
    _open(copy)
    return copy


def forget_hints(
    graph: onnx.GraphProto, made: Container[str], certain: Iterable[onnx.ValueInfoProto]
) -> None:
    """Clear, in place, the shapes that are only declared.

    `made`: values that a node makes; outputs that are none of these, or listed twice, are left out.
    `certain`: values whose shapes hold.
    """
    known = {info.name: info for info in certain}
    outputs = {port.name: port for port in graph.output if port.name in made}
    del graph.output[:]
    graph.output.extend(known.get(name) or without_shape(port) for name, port in outputs.items())
    inner = (part for node in graph.node for part in with_bodies(node))
    for _, body in (held for part in inner for held in bodies(part)):
        # The first two inputs may be a Loop's count and condition, which are scalars.
        for info in (*body.input[2:], *body.output, *body.value_info):
            _open(info)


def _open(info: onnx.ValueInfoProto) -> None:
    if info.type.HasField("tensor_type"):
        info.type.tensor_type.ClearField("shape")


def make_inferable(model: onnx.ModelProto) -> None:
    """Put nodes whose types ONNX infers in the place of some whose types it does not, or wrongly.

    A function of the model's may be of another operator set.
    """
    opset = next((e.version for e in model.opset_import if e.domain in ("", "ai.onnx")), 0)
    for node in model.graph.node:
        newer = 0 if node.domain else _AS_IN.get(node.op_type, 0)
        if node.op_type in _LIKE_INPUT and not node.domain:
            node.CopyFrom(onnx.helper.make_node("Identity", node.input[:1], node.output))
        elif opset < newer:
            reads = list(dict.fromkeys(filter(None, node.input)))
            writes = list(filter(None, node.output))
            function = model.functions.add(
                name=str(len(model.functions)),
                domain=_NEWER,
                input=reads,
                output=writes,
                node=[node],
                opset_import=[onnx.helper.make_opsetid("", newer)],
            )
            node.CopyFrom(onnx.helper.make_node(function.name, reads, writes, domain=_NEWER))
    model.opset_import.add(domain=_NEWER, version=1)


def infer_types(model: onnx.ModelProto) -> onnx.GraphProto:
    """Return the main graph with the types that ONNX infers.

    Weights may be declared to be elsewhere. Where propagating known values through the graph is
    more than the native code can do, types are inferred without. ModelError if types and shapes
    contradict each other, or are such that ONNX's own inference crashes or does not come to an end.
    """
    data = model.SerializeToString()
    worker = _WITH_RULES if any(name in data for name in _RULED) else _WORKER
    for data_prop in (True, False):
        answer = worker.ask(
            bytes([data_prop]) + data,
            memory_nbytes=_MEMORY_NBYTES + len(data) * _MEMORY_PER_BYTE,
            time_s=_TIME_S + len(data) * _TIME_S_PER_BYTE,
        )
        if isinstance(answer, Ended):
            continue
        failed, found = answer[0], answer[1:]
        if failed:
            raise ModelError(
                f"model {model.graph.name!r}: its shapes and types contradict each other: "
                f"{found.decode(errors='replace')}. Export it again, or run onnx.checker on it."
            )
        typed = onnx.ModelProto()
        typed.ParseFromString(found)
        return typed.graph
    raise ModelError(
        f"model {model.graph.name!r}: onnx {onnx.__version__} fails when it infers the shapes "
        "of this model: some attribute or shape is far out of range. Run onnx.checker on the "
        "model, and export it again."
    )
