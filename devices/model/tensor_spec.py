"""The type of a value in a model: element type, shape, and whether it is a tensor at all."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, Literal

import numpy as np
import onnx

from hetero.devices.errors import ModelError
from hetero.devices.model.element_type import (
    DTYPES,
    TYPE_NAMES,
    TYPE_NUMBERS,
    Type,
    element_type_name,
)
from hetero.devices.model.partial_shape import PartialShape, Shape
from hetero.devices.model.property_getter import getter

_ELEMENT_TYPES: Final = {f"tensor({t.value})": t for t in Type if t is not Type.dynamic}
#: Letter of a layout -> ONNX's own word for such a dimension; others are written as they are.
_DENOTATIONS: Final = {"N": "DATA_BATCH", "C": "DATA_CHANNEL", "?": ""}
_LETTERS: Final = {word: letter for letter, word in _DENOTATIONS.items()}
#: Type string of a dense tensor -> its elements' numpy dtype.
_TENSOR_DTYPES: Final = {
    f"tensor({name})": DTYPES[number] for name, number in TYPE_NUMBERS.items() if number in DTYPES
}
#: Symbols that say nothing, and so are never the same as another.
_UNKNOWN: Final = ("", "?")

Dimension = int | str | None


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A value's name, ONNX type string and shape.

    Attributes
    ----------
    name : str
        The value's name in its graph.
    type : str
        As ONNX writes it: ``tensor(float)``, ``seq(tensor(int64))``, ``optional(...)``;
        empty where unknown.
    shape : Shape of (int, str or None), or None
        A tuple that also equals a list, of one entry per dimension: a size, a symbol, or None
        where unknown; None where the rank is unknown or the value is not a tensor.
    layout : str
        What each dimension means, one letter each, as ``NHWC``; ``?`` where one means nothing, and
        empty where nothing is known. In ONNX these are the dimensions' denotations.
    """

    name: str
    type: str
    shape: tuple[Dimension, ...] | None = None
    layout: str = ""

    def __post_init__(self) -> None:
        if self.shape is not None and type(self.shape) is not Shape:
            object.__setattr__(self, "shape", Shape(self.shape))

    @property
    def is_tensor(self) -> bool:
        """Whether the value is a dense tensor."""
        return self.type.startswith("tensor(")

    @property
    def element_type(self) -> Type | Literal[""]:
        """The element type of a dense tensor, which equals ONNX's word; else the empty string."""
        return _ELEMENT_TYPES.get(self.type, "")

    @property
    def dtype(self) -> np.dtype | None:
        """The numpy dtype of a dense tensor's elements, else None."""
        return _TENSOR_DTYPES.get(self.type)

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a known size."""
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)

    @property
    def nbytes(self) -> int | None:
        """Bytes of the tensor's elements, or None where type or shape leaves it open."""
        if self.shape is None or self.dtype is None:
            return None
        sizes = [d for d in self.shape if isinstance(d, int)]
        if len(sizes) != len(self.shape):
            return None
        bits = self.dtype.itemsize * 8
        if self.element_type:
            bits = self.element_type.bitwidth or bits
        return (math.prod(sizes) * bits + 7) // 8

    # OpenVINO's names. A port is the only output of its node and has the only name of its value:
    # `get_node`, `get_tensor` are views that are the port itself.

    @property
    def any_name(self) -> str:
        """The name, as OpenVINO's ports and nodes have it."""
        return self.name

    friendly_name = any_name

    @property
    def names(self) -> set[str]:
        """The only name: an ONNX value has one."""
        return {self.name}

    @property
    def node(self) -> TensorSpec:
        """What makes the value, and its description, as OpenVINO's scripts ask: the port."""
        return self

    tensor = node

    @property
    def index(self) -> int:
        """Which output of its node the port is: the only one."""
        return 0

    @property
    def partial_shape(self) -> PartialShape:
        """The shape, with an open rank where that is not known."""
        return PartialShape(self.shape)

    @property
    def size(self) -> int:
        """How many elements there are; ArgumentError if that is open."""
        return math.prod(self.partial_shape.to_shape())

    get_name = get_any_name = get_friendly_name = getter(any_name)
    get_names = getter(names)
    get_node = get_tensor = getter(node)
    get_index = getter(index)
    get_element_type = getter(element_type)
    get_partial_shape = getter(partial_shape)
    get_size = getter(size)

    def get_shape(self) -> Shape | None:
        """Return `shape`."""
        return None if self.shape is None else Shape(self.shape)

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of `shape` fits this spec."""
        wanted = self.shape
        if wanted is None or tuple.__eq__(wanted, shape):
            return True
        for want, got in zip(wanted, shape, strict=False):  # quicker than `all`
            if want != got and isinstance(want, int):
                return False
        return len(wanted) == len(shape)

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.type or 'unknown type'}"
        dims = ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"{self.type}[{dims}]"

    @classmethod
    def from_proto(cls, info: onnx.ValueInfoProto) -> TensorSpec:
        """Read a spec from ONNX's value info."""
        check_text((info.name,), "a value")
        return cls(info.name, type_string(info.type), _shape(info.type), _layout(info.type))

    @classmethod
    def from_array(cls, name: str, array: np.ndarray) -> TensorSpec:
        """Return the spec that exactly describes `array`."""
        return cls(name, f"tensor({element_type_name(array.dtype)})", tuple(array.shape))

    def to_proto(self) -> onnx.ValueInfoProto:
        """Write the spec as ONNX's value info."""
        info = onnx.ValueInfoProto(name=self.name)
        _parse_type(self.type, info.type)
        if self.is_tensor and self.shape is not None:
            shape = info.type.tensor_type.shape
            shape.SetInParent()
            for dimension, letter in zip_longest(self.shape, self.layout, fillvalue="?"):
                entry = shape.dim.add()
                if denotation := _DENOTATIONS.get(letter, letter):
                    entry.denotation = denotation
                if isinstance(dimension, int):
                    entry.dim_value = dimension
                elif dimension is not None:
                    entry.dim_param = dimension
        return info


def type_string(proto: onnx.TypeProto) -> str:
    """Return a TypeProto as ONNX writes it in schemas: ``seq(tensor(float))``.

    ModelError if ONNX has no such element type.
    """
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        return f"tensor({_type_name(proto.tensor_type.elem_type)})"
    if kind == "sparse_tensor_type":
        return f"sparse_tensor({_type_name(proto.sparse_tensor_type.elem_type)})"
    if kind == "sequence_type":
        return f"seq({type_string(proto.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({type_string(proto.optional_type.elem_type)})"
    if kind == "map_type":
        key = _type_name(proto.map_type.key_type)
        return f"map({key},{type_string(proto.map_type.value_type)})"
    return ""


def check_text(texts: Iterable[str], where: str) -> None:
    """Raise ModelError if a name is not text: protobuf returns bytes if it is not UTF-8."""
    texts = tuple(texts)
    try:
        "".join(texts)
    except TypeError as error:
        wrong = next(text for text in texts if not isinstance(text, str))
        raise ModelError(
            f"{where}: the name {wrong!r} is not UTF-8. Export the model again."
        ) from error


def _type_name(number: int) -> str:
    if number not in TYPE_NAMES:
        raise ModelError(f"a value has element type {number}, which ONNX does not define.")
    return TYPE_NAMES[number]


def _parse_type(text: str, proto: onnx.TypeProto) -> None:
    name, _, rest = text.partition("(")
    inner = rest[:-1]
    if name == "tensor":
        proto.tensor_type.elem_type = TYPE_NUMBERS[inner]
    elif name == "sparse_tensor":
        proto.sparse_tensor_type.elem_type = TYPE_NUMBERS[inner]
    elif name == "seq":
        proto.sequence_type.SetInParent()
        _parse_type(inner, proto.sequence_type.elem_type)
    elif name == "optional":
        proto.optional_type.SetInParent()
        _parse_type(inner, proto.optional_type.elem_type)
    elif name == "map":
        key, _, value = inner.partition(",")
        proto.map_type.key_type = TYPE_NUMBERS[key]
        _parse_type(value, proto.map_type.value_type)


def _shape(proto: onnx.TypeProto) -> tuple[Dimension, ...] | None:
    kind = proto.WhichOneof("value")
    if kind not in ("tensor_type", "sparse_tensor_type"):
        return None
    tensor = getattr(proto, kind)
    if not tensor.HasField("shape"):
        return None
    check_text((d.dim_param for d in tensor.shape.dim), "a shape")
    # Exporters write -1 for a size that is open.
    return tuple(
        (d.dim_value if d.dim_value >= 0 else None)
        if d.HasField("dim_value")
        else (None if d.dim_param in _UNKNOWN else d.dim_param)
        for d in tensor.shape.dim
    )


def _layout(proto: onnx.TypeProto) -> str:
    """Return the layout that the dimensions' denotations make, empty where they have none."""
    words = [dimension.denotation for dimension in proto.tensor_type.shape.dim]
    if not any(words):
        return ""
    letters = [_LETTERS.get(word, word) for word in words]
    return "".join(letter if len(letter) == 1 else "?" for letter in letters)
