"""Emitter of the nodes and constants of preprocessing steps, with unique names."""

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
from hetero.faces.openvino.preprocess.color_format import ColorFormat


@dataclass(frozen=True, slots=True)
class Flow:
    """Tensor between a port and the model: the input and output of a preprocessing step.

    `label` names the port in messages. `values` has one name for each plane of an image. `layout`
    has one letter for each dimension, or is empty if unknown. `model` is the shape and layout that
    the model expects.
    """

    label: str
    values: tuple[str, ...]
    element_type: str
    shape: tuple[Dimension, ...] | None
    layout: str = ""
    color: ColorFormat = ColorFormat.UNDEFINED
    model: tuple[tuple[Dimension, ...] | None, str] = (None, "")

    @property
    def is_output(self) -> bool:
        """Whether the port is an output."""
        return self.label.startswith("output")

    @property
    def value(self) -> str:
        """The name of the tensor, or of its first plane."""
        return self.values[0]

    @property
    def dtype(self) -> np.dtype:
        """The numpy dtype of the elements."""
        return DTYPES[TYPE_NUMBERS[self.element_type]]


class Emitter:
    """Collector of new nodes and constants.

    `opset` is the version of the model's standard operators, `needs` the one that the new nodes
    require. `prefix`, a port's name, is the beginning of new names.
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
        """Return a unique name made of the prefix and `text`."""
        return self._free.make(f"{self.prefix}/{text}" if self.prefix else text)

    def node(self, op_type: str, *inputs: str, since: int = 1, **attributes: Any) -> str:
        """Add a node and return its output; `since` is the first opset with this form of it."""
        self.needs = max(self.needs, since)
        name = self.name(op_type.lower())
        proto = onnx.helper.make_node(op_type, inputs, [name], name=name, **attributes)
        self.nodes.append(Node.from_proto(proto))
        return name

    def constant(self, contents: Any, dtype: Any = np.int64) -> str:
        """Add a constant and return its name."""
        array = np.array(contents, dtype)
        array.setflags(write=False)
        name = self.name("constant")
        self.constants[name] = Constant(name, array)
        return name

    def cast(self, value: str, element_type: str) -> str:
        """Add a conversion to an element type."""
        return self.node("Cast", value, since=6, to=TYPE_NUMBERS[element_type])

    def transpose(self, value: str, order: Sequence[int]) -> str:
        """Add a permutation of the dimensions."""
        if list(order) == sorted(order):
            return value
        return self.node("Transpose", value, perm=list(order))

    def slice(self, value: str, axis: int, begin: int, end: int) -> str:
        """Add a slice along one axis."""
        bounds = (self.constant([number]) for number in (begin, end, axis))
        return self.node("Slice", value, *bounds, since=10)

    def gather(self, value: str, axis: int, positions: Sequence[int]) -> str:
        """Add a selection of positions along one axis, in that order."""
        return self.node("Gather", value, self.constant(positions), axis=axis)

    def round_to_integer(self, value: str, element_type: str) -> str:
        """Add a conversion of floats to integers: round half to even, and saturate."""
        limits = np.iinfo(DTYPES[TYPE_NUMBERS[element_type]])
        bounds = (self.constant(limit, np.float32) for limit in (limits.min, limits.max))
        whole = self.node("Round", value, since=11)
        return self.cast(self.node("Clip", whole, *bounds, since=11), element_type)
