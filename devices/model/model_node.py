"""Nodes of a model with OpenVINO's methods, which `Model.get_ops` returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from hetero.devices.errors import TensorNameError, UnsupportedOperationError
from hetero.devices.model.partial_shape import PartialShape, Shape
from hetero.devices.model.property_getter import getter
from hetero.devices.model.tensor_spec import TensorSpec

_IMMUTABLE: Final = "a model is immutable; edit the ONNX file with onnx, and read it again"


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """The operator of a node.

    Attributes
    ----------
    name : str
        The operator, such as ``Conv``.
    version_id : str
        The operator set: ``opset13``, or ``domain.opset1`` for another domain.
    """

    name: str
    version_id: str


class ModelNode:
    """A node of a model with OpenVINO's names: ports, types, shapes and run-time information.

    Parameters
    ----------
    model : Model
        The model.
    node : Node
        One of its nodes.
    """

    __slots__ = ("_model", "_node")

    def __init__(self, model: Any, node: Any) -> None:  # their modules import this one
        self._model: Final = model
        self._node: Final = node

    def __repr__(self) -> str:
        inputs, outputs = (
            ", ".join(f"{port.name}{port.partial_shape}" for port in ports)
            for ports in (self.inputs(), self.outputs())
        )
        return f"<{self.op_type}: {self.name!r} ({inputs}) -> ({outputs})>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ModelNode):
            return NotImplemented
        return self._model is other._model and self.name == other.name

    def __hash__(self) -> int:
        return hash((id(self._model), self.name))

    @property
    def name(self) -> str:
        """The node's unique name."""
        name: str = self._node.name
        return name

    @property
    def friendly_name(self) -> str:
        """The node's name, under OpenVINO's name for it."""
        return self.name

    get_name = get_friendly_name = getter(friendly_name)

    @property
    def op_type(self) -> str:
        """The operator."""
        op_type: str = self._node.op_type
        return op_type

    def get_type_name(self) -> str:
        """Return `op_type`."""
        return self.op_type

    @property
    def type_info(self) -> TypeInfo:
        """The operator and its operator set."""
        domain = self._node.domain
        version = self._model.opset_imports.get(domain, 1)
        return TypeInfo(self.op_type, f"{domain}.opset{version}" if domain else f"opset{version}")

    get_type_info = getter(type_info)

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes as Python values; bodies as onnx.GraphProto."""
        attributes: dict[str, Any] = self._node.attributes
        return attributes

    get_attributes = getter(attributes)

    @property
    def rt_info(self) -> dict[str, Any]:
        """The node's run-time information, which can be changed.

        The entry ``affinity`` assigns the node to a device:
        ``op.get_rt_info()["affinity"] = "CPU"``.
        """
        info: dict[str, Any] = self._model.node_rt_info.setdefault(self.name, {})
        return info

    get_rt_info = getter(rt_info)

    def set_rt_info(self, value: Any, key: str) -> None:
        """Set an entry of `rt_info`."""
        self.rt_info[key] = value

    def get_instance_id(self) -> int:
        """Return the node's position in the model."""
        position: int = self._model.index_of[self.name]
        return position

    def inputs(self) -> list[TensorSpec]:
        """Return the values that the node reads; absent optional ones have an empty name."""
        return [self._model.spec(value) for value in self._node.inputs]

    input_values = inputs

    def outputs(self) -> list[TensorSpec]:
        """Return the values that the node computes; absent optional ones have an empty name."""
        return [self._model.spec(value) for value in self._node.outputs]

    def input(self, input_index: int) -> TensorSpec:
        """Return an input by position."""
        return self._port_at(self.inputs(), input_index, "input")

    def input_value(self, index: int) -> TensorSpec:
        """Return an input by position: in ONNX, the value that the node reads."""
        return self.input(index)

    get_input_tensor = input_value

    def output(self, output_index: int = 0) -> TensorSpec:
        """Return an output by position."""
        return self._port_at(self.outputs(), output_index, "output")

    get_output_tensor = output

    def get_input_size(self) -> int:
        """Return the number of inputs."""
        return len(self._node.inputs)

    def get_output_size(self) -> int:
        """Return the number of outputs."""
        return len(self._node.outputs)

    def get_input_element_type(self, index: int) -> Any:
        """Return the element type of an input."""
        return self.input(index).element_type

    def get_output_element_type(self, index: int) -> Any:
        """Return the element type of an output."""
        return self.output(index).element_type

    def get_element_type(self) -> Any:
        """Return the element type of the first output."""
        return self.output(0).element_type

    def get_input_partial_shape(self, index: int) -> PartialShape:
        """Return the shape of an input, which may be dynamic."""
        return self.input(index).partial_shape

    def get_output_partial_shape(self, index: int) -> PartialShape:
        """Return the shape of an output, which may be dynamic."""
        return self.output(index).partial_shape

    def get_input_shape(self, index: int) -> Shape:
        """Return the shape of an input; ArgumentError if a dimension is dynamic."""
        return self.get_input_partial_shape(index).to_shape()

    def get_output_shape(self, index: int) -> Shape:
        """Return the shape of an output; ArgumentError if a dimension is dynamic."""
        return self.get_output_partial_shape(index).to_shape()

    @property
    def shape(self) -> Shape:
        """The shape of the first output; ArgumentError if a dimension is dynamic."""
        return self.get_output_shape(0)

    def _port_at(self, ports: list[TensorSpec], index: int, role: str) -> TensorSpec:
        if not 0 <= index < len(ports):
            raise TensorNameError(
                f"node {self.name!r} ({self.op_type}): expected an {role} from 0 to "
                f"{len(ports) - 1}, got {index}.",
                name=index,
            )
        return ports[index]


def refusal(name: str, reason: str) -> Callable[..., NoReturn]:
    """Return a method that raises UnsupportedOperationError, for a method of OpenVINO's."""

    def refuse(self: object, *args: object, **options: object) -> NoReturn:
        raise UnsupportedOperationError(f"{type(self).__name__}.{name}: {reason}.")

    refuse.__name__ = name
    refuse.__doc__ = f"Raise UnsupportedOperationError: {reason}."
    return refuse


def add_refusals(kind: type, reasons: dict[str, str]) -> None:
    """Add to a class the methods of OpenVINO's that hetero cannot offer; each raises the reason."""
    for name, reason in reasons.items():
        setattr(kind, name, refusal(name, reason))


add_refusals(
    ModelNode,
    dict.fromkeys(
        (
            "set_argument",
            "set_arguments",
            "set_attribute",
            "set_friendly_name",
            "set_output_size",
            "set_output_type",
        ),
        _IMMUTABLE,
    )
    | dict.fromkeys(
        (
            "constructor_validate_and_infer_types",
            "validate_and_infer_types",
            "visit_attributes",
        ),
        "types are inferred when the model is read; read them with `get_output_element_type` and "
        "`get_output_partial_shape`",
    )
    | {"evaluate": "compile the model, or `model.extract` of the node, for device CPU and run it"},
)
