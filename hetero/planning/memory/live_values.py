"""Liveness of values: the bytes of all values that a device holds while it runs each node."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from hetero.devices.model.model import Model
from hetero.devices.plugin.memory_traits import MemoryTraits
from hetero.planning.cost.estimation import value_nbytes
from hetero.planning.memory.workspace import workspace_nbytes
from hetero.planning.solver.problem import Floats

#: Operators whose result is a view of their first input.
_VIEWS: Final = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
#: Operators whose result may replace an input of the same size that nothing else reads.
_ELEMENTWISE: Final = frozenset(
    {
        *("Abs", "Add", "BatchNormalization", "Cast", "Ceil", "Clip", "Div", "Elu", "Erf", "Exp"),
        *("FastGelu", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish"),
        *("Mul", "Neg", "PRelu", "QuickGelu", "Reciprocal", "Relu", "Selu", "Sigmoid"),
        *("Softplus", "Sqrt", "Sub", "Tanh"),
    }
)


def live_nbytes(
    model: Model, positions: Sequence[int], outputs: Collection[str], traits: MemoryTraits
) -> Floats:
    """Return the bytes of all live values and of the workspace at each node of a stage.

    A value is live from the node that produces it to its last reader. Inputs are live during the
    whole run, because the request holds them; outputs are live to the end.

    `model`: with static input shapes.
    `positions`: the nodes that each request runs, in execution order.
    `outputs`: values that the stage returns.
    """
    count = len(positions)
    nodes = [model.nodes[p] for p in positions]
    produced = {value for node in nodes for value in node.writes}
    root_of = _memory_of_views(model, positions)
    last_read: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for value in node.reads:
            if value in produced or value in model.request_dependent:
                last_read[root_of.get(value, value)] = i
    roots_of_outputs = {root_of.get(value, value) for value in outputs}
    last_read |= dict.fromkeys(roots_of_outputs, count)
    inputs = {value for value in last_read if value not in produced}
    sizes = {value: value_nbytes(model.spec(value)) for value in inputs}
    changes = np.zeros(count + 2)
    changes[0] = sum(sizes.values())
    workspace = np.zeros(count)
    for i, node in enumerate(nodes):
        workspace[i] = workspace_nbytes(model, node, traits)
        for value in node.writes:
            if value in root_of:
                continue
            sizes[value] = nbytes = value_nbytes(model.spec(value))
            death = last_read.get(value, i)
            reused = None
            # Runtimes allocate the outputs of a stage themselves, so that the caller may keep them.
            is_kept = value in roots_of_outputs
            if traits.overwrites_inputs and node.op_type in _ELEMENTWISE and not is_kept:
                roots = (root_of.get(read, read) for read in node.reads)
                reused = next(
                    (
                        root
                        for root in roots
                        if last_read.get(root) == i
                        and sizes.get(root) == nbytes
                        and root not in inputs
                    ),
                    None,
                )
            if reused is not None:  # its memory lives on under the name of the result
                changes[i + 1] += nbytes
            else:
                changes[i] += nbytes
            changes[death + 1] -= nbytes
    live: Floats = np.cumsum(changes)[:count] + workspace
    return live


def _memory_of_views(model: Model, positions: Sequence[int]) -> dict[str, str]:
    """Return the value whose memory each view shares."""
    root_of: dict[str, str] = {}
    for position in positions:
        node = model.nodes[position]
        if node.op_type in _VIEWS and not node.domain and node.inputs[0] not in model.constants:
            root_of[node.outputs[0]] = root_of.get(node.inputs[0], node.inputs[0])
    return root_of
