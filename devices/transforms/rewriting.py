"""Rewriting: the questions that passes ask of a model, and the changes that they collect."""

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
    """Changes to one model, applied at once.

    Questions are answered from the model as it was, except that a node that is replaced or removed
    is no longer found: patterns do not overlap.
    """

    def __init__(self, model: Model) -> None:
        self.model: Final = model
        self._gone: set[int] = set()
        self._new: dict[int, Node] = {}
        self._constants: dict[str, np.ndarray] = {}
        self._renamed: dict[str, str] = {}

    @cached_property
    def _names(self) -> UniqueNames:
        return UniqueNames.of_values(self.model)

    @cached_property
    def _fixed(self) -> frozenset[str]:
        """Values that must stay as they are: outputs, and what bodies capture."""
        captured = (name for node in self.model.nodes for name in node.captures)
        return frozenset([*(port.name for port in self.model.outputs), *captured])

    def producer(self, value: str) -> int | None:
        """Return the position of the untouched node that makes `value`, or None."""
        at = self.model.producers.get(value)
        return None if at is None or at in self._gone else at

    def readers(self, value: str) -> tuple[int, ...]:
        """Return the positions of the nodes that read `value`; none where it must stay."""
        return () if value in self._fixed else self.model.consumers.get(value, ())

    def sole_reader(self, value: str) -> int | None:
        """Return the position of the only node that reads `value`, and only once, or None."""
        readers = self.readers(value)
        if len(readers) != 1 or readers[0] in self._gone:
            return None
        return readers[0] if self.model.nodes[readers[0]].inputs.count(value) == 1 else None

    def is_free(self, value: str) -> bool:
        """Tell whether `value` is neither an output nor captured, so that it may be renamed."""
        return value not in self._fixed

    def constant(self, value: str) -> np.ndarray | None:
        """Return the array of a constant, or None."""
        constant = self.model.constants.get(value)
        return None if constant is None else constant.array

    def is_op(self, at: int | None, *op_types: str) -> bool:
        """Tell whether the node at a position is one of these standard operators."""
        if at is None or at in self._gone:
            return False
        node = self.model.nodes[at]
        return not node.domain and node.op_type in op_types

    def replace(self, positions: Collection[int], node: Node) -> None:
        """Put `node` where the last of `positions` is, and drop the others."""
        self._gone.update(positions)
        self._new[max(positions)] = node

    def remove(self, position: int) -> None:
        """Drop a node whose outputs nobody reads any more."""
        self._gone.add(position)

    def rename(self, old: str, new: str) -> None:
        """Let the readers of `old` read `new`."""
        self._renamed[old] = self._renamed.get(new, new)

    def add_constant(self, name: str, array: np.ndarray) -> str:
        """Add a constant under a name made from `name`; return the name."""
        unique = self._names.make(name)
        self.set_constant(unique, array)
        return unique

    def set_constant(self, value: str, array: np.ndarray) -> None:
        """Make a value that a dropped node made a constant."""
        array.setflags(write=False)
        self._constants[value] = array

    def apply(self) -> Model:
        """Return the changed model; types of surviving values carry over."""
        if not (self._gone or self._new or self._constants or self._renamed):
            return self.model
        model, nodes = self.model, []
        for i, node in enumerate(model.nodes):
            kept = self._new.get(i) if i in self._gone else node
            if kept is not None:
                nodes.append(self._with_renamed(kept))
        constants = dict(model.constants) | {
            name: Constant(name, array) for name, array in self._constants.items()
        }
        header = model.header
        if FUSED not in model.opset_imports:
            header = deepcopy(header)
            header.opset_import.add(domain=FUSED, version=1)
        return model.replace(header=header, nodes=nodes, constants=constants, specs=model.specs)

    def _with_renamed(self, node: Node) -> Node:
        if not any(name in self._renamed for name in node.inputs):
            return node
        return with_inputs(node, [self._last_name(name) for name in node.inputs], node.outputs)

    def _last_name(self, name: str) -> str:
        while name in self._renamed:
            name = self._renamed[name]
        return name


def fused_node(
    op_type: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    parts: Sequence[Node],
    attributes: Mapping[str, Any],
) -> Node:
    """Return a fused operator that stands for `parts` and bears the first one's name."""
    proto = onnx.helper.make_node(op_type, inputs, outputs, name=parts[0].name, domain=FUSED)
    for name, value in attributes.items():
        known = isinstance(value, onnx.AttributeProto)
        proto.attribute.append(value if known else onnx.helper.make_attribute(name, value))
    return Node.from_proto(proto, covers=_covered(parts))


def with_inputs(node: Node, inputs: Sequence[str], outputs: Sequence[str], *more: Node) -> Node:
    """Return the same operator on other values, which now stands for `more` nodes as well."""
    proto = deepcopy(node.proto)
    proto.input[:] = inputs
    proto.output[:] = outputs
    return Node.from_proto(proto, covers=_covered((node, *more)))


def _covered(parts: Sequence[Node]) -> tuple[str, ...]:
    """Return what the parts stand for, each name once; a function call is in several."""
    return tuple(dict.fromkeys(name for part in parts for name in part.covers))
