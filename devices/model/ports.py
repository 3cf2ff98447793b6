"""Ports of a model: lookup by position, name or port object, and OpenVINO's methods of models."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from operator import getitem
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from hetero.devices.errors import (
    ArgumentTypeError,
    ModelError,
    TensorNameError,
    TensorShapeError,
    UnsupportedOperationError,
)
from hetero.devices.model.html_table import html_table
from hetero.devices.model.model_node import ModelNode, add_refusals
from hetero.devices.model.ov_any import OVAny
from hetero.devices.model.partial_shape import PartialShape, Shape
from hetero.devices.model.property_getter import getter
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.unused_result import warn_if_unused


def find_port(ports: Sequence[TensorSpec], key: Any, role: str) -> TensorSpec:
    """Return a port by position, name or port object; None selects the only port.

    Raises TensorNameError if no port matches, or if None is ambiguous.
    """
    if key is None and len(ports) == 1:
        return ports[0]
    if isinstance(key, TensorSpec):
        key = key.name
    if isinstance(key, str):
        for port in ports:
            if port.name == key:
                return port
    names = ", ".join(repr(port.name) for port in ports) or "none"
    plural = "inputs and outputs" if role == "input or output" else f"{role}s"
    if key is None:
        raise TensorNameError(
            f"expected the name or position of an {role}, because the model has {len(ports)}: "
            f"{names}.",
            name=None,
        )
    if isinstance(key, str):
        names_by_lowercase = {port.name.casefold(): port.name for port in ports}
        matches = difflib.get_close_matches(key.casefold(), names_by_lowercase, 1)
        hint = f" Did you mean {names_by_lowercase[matches[0]]!r}?" if matches else ""
        raise TensorNameError(
            f"no {role} is named {key!r}; the {plural} are {names}.{hint}", name=key
        )
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        if -len(ports) <= key < len(ports):
            return ports[int(key)]
        raise TensorNameError(
            f"{role} {key} is out of range; the model has {len(ports)} "
            f"{role if len(ports) == 1 else plural}: {names}.",
            name=key,
        )
    raise ArgumentTypeError(
        f"expected the name, position or port object of an {role}, got {type(key).__name__}."
    )


class PortLookup:
    """Base of classes with input and output ports: finds ports by position, name or port object."""

    if TYPE_CHECKING:  # attributes of subclasses

        @property
        def inputs(self) -> Sequence[TensorSpec]: ...  # noqa: D102
        @property
        def outputs(self) -> Sequence[TensorSpec]: ...  # noqa: D102

    def input(
        self,
        key: int | str | TensorSpec | None = None,
        *,
        tensor_name: str | None = None,
        index: int | None = None,
    ) -> TensorSpec:
        """Return an input by position or name; without arguments, the only input.

        Raises
        ------
        TensorNameError
            No input matches, or the model has several inputs and no argument selects one.
        """
        return find_port(self.inputs, _first_key(key, tensor_name, index), "input")

    def output(
        self,
        key: int | str | TensorSpec | None = None,
        *,
        tensor_name: str | None = None,
        index: int | None = None,
    ) -> TensorSpec:
        """Return an output by position or name; without arguments, the only output."""
        return find_port(self.outputs, _first_key(key, tensor_name, index), "output")


class OpenVinoModelMethods(PortLookup):
    """Base of `Model` with the methods of OpenVINO's models."""

    if TYPE_CHECKING:  # attributes of `Model`
        name: str

        @property
        def metadata(self) -> Mapping[str, str]: ...  # noqa: D102
        @property
        def nodes(self) -> tuple[Any, ...]: ...  # noqa: D102
        def spec(self, value: str) -> TensorSpec: ...  # noqa: D102
        def replace(self, **changes: Any) -> Any: ...  # noqa: D102

    def _repr_html_(self) -> str:
        ports = [("input", port) for port in self.inputs]
        ports += [("output", port) for port in self.outputs]
        rows = [(role, port.name, port, port.layout) for role, port in ports]
        caption = f"Model {self.name}: {len(self.nodes)} nodes"
        return html_table(caption, ("port", "name", "type", "layout"), rows)

    @property
    def friendly_name(self) -> str:
        """The model's name, under OpenVINO's name for it."""
        return self.name

    get_name = get_friendly_name = getter(friendly_name)

    def set_friendly_name(self, name: str) -> NoReturn:
        """Raise UnsupportedOperationError: a model is immutable."""
        raise UnsupportedOperationError(
            f"model {self.name!r} is immutable; use model.replace(name={name!r}), which returns a "
            "renamed copy."
        )

    @property
    def rt_info(self) -> dict[str, Any]:
        """The model's metadata under the key ``framework``, as in OpenVINO."""
        return {"framework": {name: OVAny(text) for name, text in self.metadata.items()}}

    def get_rt_info(self, path: str | Sequence[str] = ()) -> Any:
        """Return `rt_info` or the entry at a path such as ``["framework", "author"]``."""
        return reduce(getitem, [path] if isinstance(path, str) else path, self.rt_info)

    def has_rt_info(self, path: str | Sequence[str]) -> bool:
        """Return whether `rt_info` has an entry at a path."""
        with suppress(KeyError, TypeError):
            return self.get_rt_info(path) is not None
        return False

    def get_ordered_ops(self) -> list[ModelNode]:
        """Return the nodes with OpenVINO's methods, in topological order, without ports."""
        return [ModelNode(self, node) for node in self.nodes]

    get_ops = get_ordered_ops

    def get_parameters(self) -> list[TensorSpec]:
        """Return the inputs."""
        return list(self.inputs)

    def get_results(self) -> list[TensorSpec]:
        """Return the outputs."""
        return list(self.outputs)

    parameters = property(get_parameters)
    results = property(get_results)

    def get_output_size(self) -> int:
        """Return the number of outputs."""
        return len(self.outputs)

    def get_output_shape(self, index: int) -> Shape:
        """Return an output's shape; ArgumentError if a dimension is dynamic."""
        return self.get_output_partial_shape(index).to_shape()

    def get_output_partial_shape(self, index: int) -> PartialShape:
        """Return an output's shape, which may be dynamic."""
        return self.output(index).partial_shape

    def get_output_element_type(self, index: int) -> Any:
        """Return an output's element type."""
        return self.output(index).element_type

    def get_output_op(self, index: int) -> TensorSpec:
        """Return an output by position."""
        return self.output(index)

    def get_result(self) -> TensorSpec:
        """Return the only output."""
        return self.output()

    result = property(get_result)

    def get_parameter_index(self, parameter: TensorSpec) -> int:
        """Return an input's position; -1 if the port is not an input."""
        return self.inputs.index(parameter) if parameter in self.inputs else -1

    def get_result_index(self, value: TensorSpec) -> int:
        """Return an output's position; -1 if the port is not an output."""
        return self.outputs.index(value) if value in self.outputs else -1

    def add_outputs(self, outputs: str | Sequence[str]) -> Self:
        """Return a copy of the model with inner values as additional outputs.

        Raises
        ------
        TensorNameError
            No node computes such a value.
        """
        names = [outputs] if isinstance(outputs, str) else [*outputs]
        values = {name for node in self.nodes for name in node.outputs}
        for name in names:
            if name not in values:
                raise TensorNameError(
                    f"no node of model {self.name!r} has an output {name!r}.", name=name
                )
        warn_if_unused("model = model.add_outputs(...)")
        present = {port.name for port in self.outputs}
        new = [self.spec(name) for name in dict.fromkeys(names) if name not in present]
        larger: Self = self.replace(outputs=[*self.outputs, *new])
        return larger

    def is_dynamic(self) -> bool:
        """Return whether a port has a dynamic dimension."""
        return not all(port.is_static for port in (*self.inputs, *self.outputs) if port.is_tensor)

    dynamic = property(is_dynamic)

    def reshape(self, shapes: Any) -> Self:
        """Return a copy of the model with other input shapes.

        Parameters
        ----------
        shapes : shape, or mapping
            The shape of the only input, in a form that `PartialShape` accepts; or shapes by name,
            position or port. -1 and intervals make a dimension dynamic.

        Raises
        ------
        TensorShapeError
            A shape has another rank than its input.
        ModelError
            The model's nodes cannot process these shapes.
        """
        mapping = shapes if isinstance(shapes, Mapping) else {None: shapes}
        inputs = {port.name: port for port in self.inputs}
        for key, value in mapping.items():
            port = find_port(self.inputs, key, "input")
            shape = PartialShape(value)
            if port.shape is not None and shape.rank != len(port.shape):
                raise TensorShapeError(
                    f"input {port.name!r} ({port}): expected {len(port.shape)} dimensions, got "
                    f"{shape}.",
                    port=port.name,
                )
            inputs[port.name] = replace(port, shape=shape.values)
        # The declared shapes of values belong to the old input shapes.
        outputs = [replace(port, shape=None) if port.is_tensor else port for port in self.outputs]
        old = self.replace(outputs=outputs, value_info=())
        new = old.replace(inputs=list(inputs.values()))
        for port in self.outputs:
            if new.spec(port.name).shape is None is not old.spec(port.name).shape:
                listing = ", ".join(f"{n!r} {port.partial_shape}" for n, port in inputs.items())
                raise ModelError(
                    f"model {self.name!r}: its nodes cannot compute output {port.name!r} from "
                    f"inputs {listing}; the model was exported for inputs "
                    f"{', '.join(map(str, self.inputs))}."
                )
        for node in new.nodes:
            if (problem := _channel_mismatch(node, new)) is not None:
                raise ModelError(f"model {self.name!r}: node {node.name!r} {problem}.")
        reshaped_model: Self = new.replace(
            outputs=[replace(port, shape=new.spec(port.name).shape) for port in self.outputs]
        )
        warn_if_unused("model = model.reshape(...)")
        return reshaped_model


add_refusals(
    OpenVinoModelMethods,
    dict.fromkeys(
        (
            "add_parameters",
            "add_results",
            "add_sinks",
            "add_variables",
            "remove_parameter",
            "remove_result",
            "remove_sink",
            "remove_variable",
            "replace_parameter",
            "set_rt_info",
        ),
        "a model is immutable; edit the ONNX file with onnx, and read it again",
    )
    | dict.fromkeys(
        ("get_sink_index", "get_sinks", "get_variable_by_id", "get_variables"),
        "ONNX has no sinks or variables; states are pairs of inputs and outputs, which "
        "`read_model(..., states=...)` declares and `query_state` of a request returns",
    )
    | {
        "evaluate": "compile the model for device CPU and run it",
        "validate_nodes_and_infer_types": "types are inferred when the model is read",
    },
)


def _first_key(*keys: Any) -> Any:
    """Return the first key that is not None, or None."""
    return next((key for key in keys if key is not None), None)


def _channel_mismatch(node: Any, model: Any) -> str | None:
    """Describe a mismatch of a convolution's input and weights, which ONNX does not check."""
    if node.domain or node.op_type not in ("Conv", "ConvInteger", "ConvTranspose"):
        return None
    x, w = (model.spec(value).shape for value in node.inputs[:2])
    if not x or not w or len(x) < 2 or len(w) < 2:
        return None
    group = node.attributes.get("group", 1)
    channels = w[0] if node.op_type == "ConvTranspose" else w[1]
    if not isinstance(x[1], int) or not isinstance(channels, int):
        return None
    if node.op_type != "ConvTranspose":
        channels *= group
    if x[1] == channels:
        return None
    return f"expects an input of {channels} channels because of its weights, got {x[1]}"
