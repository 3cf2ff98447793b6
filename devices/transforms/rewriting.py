"""Graph rewriting: queries of a model's graph, and a set of changes that is applied at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any, Final

import numpy as np
import onnx

from hetero.devices.interpreter.implementations import FUSED
from hetero.devices.model.model import Constant, Model, Node
from hetero.devices.model.unique_names import UniqueNames


class Rewrite:
    """A set of changes to a model.

    Queries refer to the original model, without the nodes that are already replaced or removed, so
    that matches of patterns do not overlap.
    """

    def __init__(self, model: Model) -> None:
        self.model: Final = model
        self._removed_positions: set[int] = set()
        self._new_nodes: dict[int, Node] = {}
        self._constants: dict[str, np.ndarray] = {}
        self._new_names: dict[str, str] = {}

    @cached_property
    def _names(self) -> UniqueNames:
        return UniqueNames.of_values(self.model)

    @cached_property
    def _fixed_names(self) -> frozenset[str]:
        """Values that cannot be renamed: outputs, and values that bodies capture."""
        captured_values = (name for node in self.model.nodes for name in node.captures)
        return frozenset([*(port.name for port in self.model.outputs), *captured_values])

    def producer(self, value: str) -> int | None:
        """Return the position of the unchanged node that computes `value`, or None."""
        position = self.model.producers.get(value)
        return None if position is None or position in self._removed_positions else position

    def readers(self, value: str) -> tuple[int, ...]:
        """Return the positions of the nodes that read `value`; empty if it cannot be renamed."""
        return () if value in self._fixed_names else self.model.consumers.get(value, ())

    def sole_reader(self, value: str) -> int | None:
        """Return the position of the node with the only use of `value`, or None."""
        readers = self.readers(value)
        if len(readers) != 1 or readers[0] in self._removed_positions:
            return None
        return readers[0] if self.model.nodes[readers[0]].inputs.count(value) == 1 else None

    def can_rename(self, value: str) -> bool:
        """Return whether `value` is neither an output nor captured by a body."""
        return value not in self._fixed_names

    def constant(self, value: str) -> np.ndarray | None:
        """Return the array of a constant, or None."""
        constant = self.model.constants.get(value)
        return None if constant is None else constant.array

    def is_op(self, position: int | None, *op_types: str) -> bool:
        """Return whether the node at a position is one of these standard operators."""
        if position is None or position in self._removed_positions:
            return False
        node = self.model.nodes[position]
        return not node.domain and node.op_type in op_types

    def replace(self, positions: Collection[int], node: Node) -> None:
        """Replace the nodes at `positions` by `node`, at the last of the positions."""
        self._removed_positions.update(positions)
        self._new_nodes[max(positions)] = node

    def remove(self, position: int) -> None:
        """Remove a node whose outputs are not read any more."""
        self._removed_positions.add(position)

    def rename(self, old: str, new: str) -> None:
        """Make the readers of `old` read `new`."""
        self._new_names[old] = self._new_names.get(new, new)

    def add_constant(self, name: str, array: np.ndarray) -> str:
        """Add a constant with a unique name that begins with `name`; return the unique name."""
        unique = self._names.make(name)
        self.set_constant(unique, array)
        return unique

    def set_constant(self, value: str, array: np.ndarray) -> None:
        """Set the value of a constant, which may have been the output of a removed node."""
        array.setflags(write=False)
        self._constants[value] = array

    def apply(self) -> Model:
        """Return the changed model, or the original without changes; value types are retained."""
        if not (self._removed_positions or self._new_nodes or self._constants or self._new_names):
            return self.model
        model, nodes = self.model, []
        for i, node in enumerate(model.nodes):
            new_node = self._new_nodes.get(i) if i in self._removed_positions else node
            if new_node is not None:
                nodes.append(self._rename_inputs(new_node))
        constants = dict(model.constants) | {
            name: Constant(name, array) for name, array in self._constants.items()
        }
        header = model.header
        if FUSED not in model.opset_imports:
            header = deepcopy(header)
            header.opset_import.add(domain=FUSED, version=1)
        return model.replace(header=header, nodes=nodes, constants=constants, specs=model.specs)

    def _rename_inputs(self, node: Node) -> Node:
        if not any(name in self._new_names for name in node.inputs):
            return node
        return with_inputs(node, [self._final_name(name) for name in node.inputs], node.outputs)

    def _final_name(self, name: str) -> str:
        while name in self._new_names:
            name = self._new_names[name]
        return name


def fused_node(
    op_type: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    parts: Sequence[Node],
    attributes: Mapping[str, Any],
) -> Node:
    """Return a fused operator that covers `parts` and has the name of the first."""
    proto = onnx.helper.make_node(op_type, inputs, outputs, name=parts[0].name, domain=FUSED)
    for name, value in attributes.items():
        is_proto = isinstance(value, onnx.AttributeProto)
        proto.attribute.append(value if is_proto else onnx.helper.make_attribute(name, value))
    return Node.from_proto(proto, covers=_covered_names(parts))


def with_inputs(node: Node, inputs: Sequence[str], outputs: Sequence[str], *more: Node) -> Node:
    """Return a copy of a node with other inputs and outputs, which also covers `more` nodes."""
    proto = deepcopy(node.proto)
    proto.input[:] = inputs
    proto.output[:] = outputs
    return Node.from_proto(proto, covers=_covered_names((node, *more)))


def _covered_names(parts: Sequence[Node]) -> tuple[str, ...]:
    """Return the names that nodes cover, without duplicates: several may cover one call."""
    return tuple(dict.fromkeys(name for part in parts for name in part.covers))
