"""Pass: what depends on constants alone is computed once."""

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

#: A result larger than this, and than what it was made from, is not kept.
MOST_NBYTES: Final = 1 << 29


def fold_constants(model: Model) -> Model:
    """Return the model with constant subgraphs replaced by their values.

    `Shape` and `Size` of values whose shape is known count as constant too. A node that fails is
    left for the run to report; outputs of the graph stay with the node that makes them.
    """
    rewrite, scope = Rewrite(model), Scope.of_model(model)
    known = {name: constant.array for name, constant in model.constants.items()}
    outputs = {port.name for port in model.outputs}
    for i, node in enumerate(model.nodes):
        if any(value in outputs for value in node.writes):
            continue
        folded = _known_shape(node, model) if node.reads else None
        if folded is None and all(name in known for name in node.reads):
            folded = _computed(model, node, known, scope)
        if folded is None:
            continue
        rewrite.remove(i)
        for value, array in folded.items():
            known[value] = array
            rewrite.set_constant(value, array)
    return rewrite.apply()


def _computed(
    model: Model, node: Node, known: dict[str, np.ndarray], scope: Scope
) -> dict[str, np.ndarray] | None:
    if node.captures or _is_left(node, scope):
        return None
    if any((model.spec(value).nbytes or 0) > MOST_NBYTES for value in node.writes):
        return None
    if isinstance(find_implementation(node, scope), Refusal):
        return None
    try:
        block = build_block(
            [node], inputs=node.reads, outputs=node.writes, constants={}, scope=scope
        )
        with np.errstate(all="ignore"):
            values = block.run([known[name] for name in node.reads], RunContext())
    except (HeteroError, MemoryError):
        return None
    if not all(isinstance(value, np.ndarray) for value in values):
        return None
    used = sum(known[name].nbytes for name in node.reads)
    if sum(value.nbytes for value in values) > max(MOST_NBYTES, used):
        return None
    return dict(zip(node.writes, values, strict=True))


def _is_left(node: Node, scope: Scope) -> bool:
    """Tell whether the run has to do the node, or one in its bodies or in the function called."""
    if node.op_type in NOT_FOLDABLE:
        return True
    inner = [proto for _, graph in bodies(node.proto) for proto in graph.node]
    found = find_implementation(node, scope)
    if isinstance(found, Implementation) and found.kind == "function":
        scope = scope.of_function(found.definition)
        inner.extend(found.definition.node)
    return any(_is_left(Node.from_proto(proto), scope) for proto in inner)


def _known_shape(node: Node, model: Model) -> dict[str, np.ndarray] | None:
    if node.domain or node.op_type not in ("Shape", "Size"):
        return None
    spec = model.spec(node.inputs[0])
    if spec.shape is None or not spec.is_static or not spec.is_tensor:
        return None
    shape = np.asarray(spec.shape, np.int64)
    if node.op_type == "Size":
        return {node.outputs[0]: np.asarray(shape.prod(), np.int64)}
    cut = slice(node.attributes.get("start"), node.attributes.get("end"))
    return {node.outputs[0]: shape[cut]}
