"""Pass: constant folding."""

from __future__ import annotations

from typing import Final

import numpy as np

from hetero.devices.errors import HeteroError
from hetero.devices.interpreter.block import build_block
from hetero.devices.interpreter.implementations import (
    NOT_FOLDABLE,
    Implementation,
    Scope,
    find_implementation,
)
from hetero.devices.model.attributes import bodies
from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.program import RunContext
from hetero.devices.plugin.support import Refusal
from hetero.devices.transforms.rewriting import Rewrite

#: A folded result may exceed this size only if its inputs are larger.
MAX_NBYTES: Final = 1 << 29


def fold_constants(model: Model) -> Model:
    """Return the model with nodes of constant inputs replaced by their values.

    This includes `Shape` and `Size` of values with a static shape. A node that fails stays in the
    graph, so that the run reports its error. Nodes that compute graph outputs also stay.
    """
    rewrite, scope = Rewrite(model), Scope.of_model(model)
    arrays = {name: constant.array for name, constant in model.constants.items()}
    outputs = {port.name for port in model.outputs}
    for i, node in enumerate(model.nodes):
        if any(value in outputs for value in node.writes):
            continue
        results = _static_shape(node, model) if node.reads else None
        if results is None and all(name in arrays for name in node.reads):
            results = _compute(model, node, arrays, scope)
        if results is None:
            continue
        rewrite.remove(i)
        for value, array in results.items():
            arrays[value] = array
            rewrite.set_constant(value, array)
    return rewrite.apply()


def _compute(
    model: Model, node: Node, arrays: dict[str, np.ndarray], scope: Scope
) -> dict[str, np.ndarray] | None:
    """Return the outputs of a node with constant inputs, or None if it cannot be folded."""
    if node.captures or _runs_per_request(node, scope):
        return None
    if any((model.spec(value).nbytes or 0) > MAX_NBYTES for value in node.writes):
        return None
    if isinstance(find_implementation(node, scope), Refusal):
        return None
    try:
        block = build_block(
            [node], inputs=node.reads, outputs=node.writes, constants={}, scope=scope
        )
        with np.errstate(all="ignore"):
            values = block.run([arrays[name] for name in node.reads], RunContext())
    except (HeteroError, MemoryError):
        return None
    if not all(isinstance(value, np.ndarray) for value in values):
        return None
    input_nbytes = sum(arrays[name].nbytes for name in node.reads)
    if sum(value.nbytes for value in values) > max(MAX_NBYTES, input_nbytes):
        return None
    return dict(zip(node.writes, values, strict=True))


def _runs_per_request(node: Node, scope: Scope) -> bool:
    """Return whether a node, its subgraphs or its function contain an operator that must run."""
    if node.op_type in NOT_FOLDABLE:
        return True
    inner = [proto for _, graph in bodies(node.proto) for proto in graph.node]
    implementation = find_implementation(node, scope)
    if isinstance(implementation, Implementation) and implementation.kind == "function":
        scope = scope.of_function(implementation.definition)
        inner.extend(implementation.definition.node)
    return any(_runs_per_request(Node.from_proto(proto), scope) for proto in inner)


def _static_shape(node: Node, model: Model) -> dict[str, np.ndarray] | None:
    """Return the output of Shape or Size if it follows from static shapes."""
    if node.domain or node.op_type not in ("Shape", "Size"):
        return None
    spec = model.spec(node.inputs[0])
    if spec.shape is None or not spec.is_static or not spec.is_tensor:
        return None
    shape = np.asarray(spec.shape, np.int64)
    if node.op_type == "Size":
        return {node.outputs[0]: np.asarray(shape.prod(), np.int64)}
    axes = slice(node.attributes.get("start"), node.attributes.get("end"))
    return {node.outputs[0]: shape[axes]}
