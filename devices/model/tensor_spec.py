"""Types of values in a model: `TensorSpec`, with ONNX type string, shape and layout."""

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
#: Letter of a layout -> ONNX's denotation of such a dimension; other letters are denotations as is.
_DENOTATIONS: Final = {"N": "DATA_BATCH", "C": "DATA_CHANNEL", "?": ""}
_LETTERS: Final = {denotation: letter for letter, denotation in _DENOTATIONS.items()}
#: Type string of a dense tensor -> its elements' numpy dtype.
_TENSOR_DTYPES: Final = {
    f"tensor({name})": DTYPES[number] for name, number in TYPE_NUMBERS.items() if number in DTYPES
}
#: Type string of a dense tensor -> bits of an element.
_NUM_BITS: Final = {
    name: (_ELEMENT_TYPES[name].bitwidth if name in _ELEMENT_TYPES else 0) or dtype.itemsize * 8
    for name, dtype in _TENSOR_DTYPES.items()
}
#: Names of dimensions that do not identify a symbol.
_ANONYMOUS: Final = ("", "?")

Dimension = int | str | None


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, ONNX type string and shape of a value.

    Attributes
    ----------
    name : str
        The value's name in its graph.
    type : str
        ONNX type string: ``tensor(float)``, ``seq(tensor(int64))``, ``optional(...)``; empty if
        unknown.
    shape : Shape of (int, str or None), or None
        One entry per dimension: a size, a symbol, or None if unknown. None if the rank is unknown
        or the value is not a tensor. The tuple also equals a list of the same entries.
    layout : str
        One letter per dimension, such as ``NHWC``; ``?`` for a dimension without a meaning; empty
        if unknown. In ONNX files these are the denotations of dimensions.
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
        """The element type of a dense tensor; otherwise the empty string."""
        return _ELEMENT_TYPES.get(self.type, "")

    @property
    def dtype(self) -> np.dtype | None:
        """The numpy dtype of a dense tensor; otherwise None."""
        return _TENSOR_DTYPES.get(self.type)

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a known size."""
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)

    @property
    def nbytes(self) -> int | None:
        """Bytes of the tensor's elements, or None if the type or a dimension is unknown."""
        bits = _NUM_BITS.get(self.type)
        if self.shape is None or bits is None:
            return None
        count = 1
        for dimension in self.shape:
            if not isinstance(dimension, int):
                return None
            count *= dimension
        return (count * bits + 7) // 8

    # OpenVINO's names. In ONNX a port is the only output of its node and has one name, so
    # `get_node` and `get_tensor` return the port itself.

    @property
    def any_name(self) -> str:
        """The port's name, under OpenVINO's name for it."""
        return self.name

    friendly_name = any_name

    @property
    def names(self) -> set[str]:
        """The set of the port's only name."""
        return {self.name}

    @property
    def node(self) -> TensorSpec:
        """The port itself, in place of OpenVINO's node and tensor descriptor."""
        return self

    tensor = node

    @property
    def index(self) -> int:
        """The port's index among the outputs of its node: always 0."""
        return 0

    @property
    def partial_shape(self) -> PartialShape:
        """The shape as a PartialShape, of dynamic rank if the rank is unknown."""
        return PartialShape(self.shape)

    @property
    def size(self) -> int:
        """Number of elements; ArgumentError if a dimension is dynamic."""
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
        """Return whether an array of `shape` fits this spec."""
        own_shape = self.shape
        if own_shape is None or tuple.__eq__(own_shape, shape):
            return True
        for dimension, size in zip(own_shape, shape, strict=False):  # faster than `all`
            if dimension != size and isinstance(dimension, int):
                return False
        return len(own_shape) == len(shape)

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.type or 'unknown type'}"
        dims = ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"{self.type}[{dims}]"

    @classmethod
    def from_proto(cls, info: onnx.ValueInfoProto) -> TensorSpec:
        """Return the spec of a ValueInfoProto."""
        check_text((info.name,), "a value")
        return cls(info.name, type_string(info.type), _shape(info.type), _layout(info.type))

    @classmethod
    def from_array(cls, name: str, array: np.ndarray) -> TensorSpec:
        """Return the exact spec of an array."""
        return cls(name, f"tensor({element_type_name(array.dtype)})", tuple(array.shape))

    def to_proto(self) -> onnx.ValueInfoProto:
        """Return the spec as a ValueInfoProto."""
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
    """Return the type string of a TypeProto, such as ``seq(tensor(float))``.

    Raises ModelError if ONNX does not define the element type.
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


def check_text(texts: Iterable[str], context: str) -> None:
    """Raise ModelError if a name is not UTF-8: protobuf then returns bytes instead of str."""
    texts = tuple(texts)
    try:
        "".join(texts)
    except TypeError as error:
        invalid = next(text for text in texts if not isinstance(text, str))
        raise ModelError(
            f"{context}: the name {invalid!r} is not UTF-8. Export the model again."
        ) from error


def _type_name(number: int) -> str:
    if number not in TYPE_NAMES:
        raise ModelError(f"ONNX does not define element type {number} of a value.")
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
    # Exporters write -1 for an unknown size.
    return tuple(
        (d.dim_value if d.dim_value >= 0 else None)
        if d.HasField("dim_value")
        else (None if d.dim_param in _ANONYMOUS else d.dim_param)
        for d in tensor.shape.dim
    )


def _layout(proto: onnx.TypeProto) -> str:
    """Return the layout from the denotations of a type's dimensions; empty without denotations."""
    denotations = [dimension.denotation for dimension in proto.tensor_type.shape.dim]
    if not any(denotations):
        return ""
    letters = [_LETTERS.get(denotation, denotation) for denotation in denotations]
    return "".join(letter if len(letter) == 1 else "?" for letter in letters)
