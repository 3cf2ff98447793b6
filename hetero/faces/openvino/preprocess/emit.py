"""What steps write: nodes and constants with names that are free in the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx

from hetero.devices.model.element_type import DTYPES, TYPE_NUMBERS
from hetero.devices.model.model import Constant, Model, Node
from hetero.devices.model.tensor_spec import Dimension
from hetero.devices.model.unique_names import UniqueNames
from hetero.faces.openvino.preprocess.colors import ColorFormat


@dataclass(frozen=True, slots=True)
class Flow:
    """A tensor on its way between a port and the model: what the next step finds.

    `where` names the port in messages; `values` are several for a picture in planes; `layout` has
    one letter for each dimension, and is empty where nothing is known of it; `model` is the shape
    and layout in which the model takes it.
    """

    where: str
    values: tuple[str, ...]
    element_type: str
    shape: tuple[Dimension, ...] | None
    layout: str = ""
    color: ColorFormat = ColorFormat.UNDEFINED
    model: tuple[tuple[Dimension, ...] | None, str] = (None, "")

    @property
    def is_output(self) -> bool:
        """Whether the port is an output."""
        return self.where.startswith("output")

    @property
    def value(self) -> str:
        """The only value."""
        return self.values[0]

    @property
    def dtype(self) -> np.dtype:
        """The elements' numpy dtype."""
        return DTYPES[TYPE_NUMBERS[self.element_type]]


class Emitter:
    """Collects nodes and constants.

    `opset` is the standard operators' version; `needs` the one that the nodes need; `prefix`, a
    port's name, begins the names of what follows.
    """

    def __init__(self, model: Model) -> None:
        self.opset: Final = model.opset_imports.get("", 0)
        self.needs = 1
        self.nodes: list[Node] = []
        self.constants: dict[str, Constant] = {}
        ports = (port.name for port in (*model.inputs, *model.optional_inputs))
        self._free = UniqueNames([*ports, *model.node_names, *model.producers, *model.constants])
        self.prefix = ""

    def name(self, text: str) -> str:
        """Return a name that is free, made of `text` behind the step's prefix."""
        return self._free.make(f"{self.prefix}/{text}" if self.prefix else text)

    def node(self, op_type: str, *inputs: str, since: int = 1, **attributes: Any) -> str:
        """Add a node; return its output. `since`: the opset from which on this form is valid."""
        self.needs = max(self.needs, since)
        name = self.name(op_type.lower())
        proto = onnx.helper.make_node(op_type, inputs, [name], name=name, **attributes)
        self.nodes.append(Node.from_proto(proto))
        return name

    def constant(self, contents: Any, dtype: Any = np.int64) -> str:
        """Add a constant; return its name."""
        array = np.array(contents, dtype)
        array.setflags(write=False)
        name = self.name("constant")
        self.constants[name] = Constant(name, array)
        return name

    def cast(self, value: str, element_type: str) -> str:
        """Convert the elements."""
        return self.node("Cast", value, since=6, to=TYPE_NUMBERS[element_type])

    def transpose(self, value: str, order: Sequence[int]) -> str:
        """Put the dimensions into another order."""
        if list(order) == sorted(order):
            return value
        return self.node("Transpose", value, perm=list(order))

    def slice(self, value: str, axis: int, begin: int, end: int) -> str:
        """Take a part along one axis."""
        bounds = (self.constant([number]) for number in (begin, end, axis))
        return self.node("Slice", value, *bounds, since=10)

    def pick(self, value: str, axis: int, positions: Sequence[int]) -> str:
        """Take positions along one axis, in that order."""
        return self.node("Gather", value, self.constant(positions), axis=axis)

    def rounded(self, value: str, element_type: str) -> str:
        """Convert floats to integers: the nearest, half to even, saturated."""
        limits = np.iinfo(DTYPES[TYPE_NUMBERS[element_type]])
        bounds = (self.constant(limit, np.float32) for limit in (limits.min, limits.max))
        whole = self.node("Round", value, since=11)
        return self.cast(self.node("Clip", whole, *bounds, since=11), element_type)
