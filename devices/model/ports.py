"""Ports of a model: found by position, name or port, and given other shapes."""

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
from hetero.devices.model.partial_shape import PartialShape, Shape
from hetero.devices.model.property_getter import getter
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.unused_result import warn_if_unused


def find_port(ports: Sequence[TensorSpec], key: Any, role: str) -> TensorSpec:
    """Return the port that a position, name or port means, None the only one; TensorNameError."""
    if key is None and len(ports) == 1:
        return ports[0]
    if isinstance(key, TensorSpec):
        key = key.name
    if isinstance(key, str):
        for port in ports:
            if port.name == key:
                return port
    names = ", ".join(repr(port.name) for port in ports) or "none"
    if key is None:
        raise TensorNameError(
            f"the model has {len(ports)} {role}s, not exactly one; say which: {names}.", name=None
        )
    if isinstance(key, str):
        folded = {port.name.casefold(): port.name for port in ports}
        near = difflib.get_close_matches(key.casefold(), folded, 1)
        hint = f" Did you mean {folded[near[0]]!r}?" if near else ""
        raise TensorNameError(f"no {role} is named {key!r}; there are {names}.{hint}", name=key)
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        if -len(ports) <= key < len(ports):
            return ports[int(key)]
        raise TensorNameError(
            f"{role} {key} is out of range: there are {len(ports)}: {names}.", name=key
        )
    raise ArgumentTypeError(
        f"a port is named by its name, position or port object; got {type(key).__name__}."
    )


class Ports:
    """Inputs and outputs that are found by position, name or port."""

    if TYPE_CHECKING:  # what has them

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
        """Return an input by position or name; without either, the only one.

        Raises
        ------
        TensorNameError
            There is no such input, or not exactly one.
        """
        return find_port(self.inputs, _used(key, tensor_name, index), "input")

    def output(
        self,
        key: int | str | TensorSpec | None = None,
        *,
        tensor_name: str | None = None,
        index: int | None = None,
    ) -> TensorSpec:
        """Return an output by position or name; without either, the only one."""
        return find_port(self.outputs, _used(key, tensor_name, index), "output")


class OVAny(str):
    """A text that is also asked for its value, as OpenVINO's entries are."""

    __slots__ = ()

    @property
    def value(self) -> str:
        """The text."""
        return str(self)

    def astype(self, kind: type) -> Any:
        """Return the text as another type."""
        return kind(str(self))


class HasPorts(Ports):
    """What a model has by its ports, under OpenVINO's names. Part of `Model`."""

    if TYPE_CHECKING:  # what `Model` has
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
        """The model's name, as OpenVINO's models have it."""
        return self.name

    get_name = get_friendly_name = getter(friendly_name)

    def set_friendly_name(self, name: str) -> NoReturn:
        """Refused: a model never changes."""
        raise UnsupportedOperationError(
            f"model {self.name!r} keeps its name; model.replace(name={name!r}) gives one of that "
            "name."
        )

    @property
    def rt_info(self) -> dict[str, Any]:
        """The model's metadata, where OpenVINO has that of ONNX models: under ``framework``."""
        return {"framework": {name: OVAny(text) for name, text in self.metadata.items()}}

    def get_rt_info(self, path: str | Sequence[str] = ()) -> Any:
        """Return `rt_info`, or an entry, as ``["framework", "author"]``; KeyError if none is so."""
        return reduce(getitem, [path] if isinstance(path, str) else path, self.rt_info)

    def has_rt_info(self, path: str | Sequence[str]) -> bool:
        """Return whether `rt_info` has an entry."""
        with suppress(KeyError, TypeError):
            return self.get_rt_info(path) is not None
        return False

    def get_ordered_ops(self) -> list[Any]:
        """Return `nodes`, as OpenVINO's models do; ports are none of them."""
        return list(self.nodes)

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
        """Return how many outputs there are."""
        return len(self.outputs)

    def get_output_shape(self, index: int) -> Shape:
        """Return an output's lengths; ArgumentError if any is open."""
        return self.get_output_partial_shape(index).to_shape()

    def get_output_partial_shape(self, index: int) -> PartialShape:
        """Return an output's shape."""
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
        """Return an input's position; -1 where it is none."""
        return self.inputs.index(parameter) if parameter in self.inputs else -1

    def get_result_index(self, value: TensorSpec) -> int:
        """Return an output's position; -1 where it is none."""
        return self.outputs.index(value) if value in self.outputs else -1

    def add_outputs(self, outputs: str | Sequence[str]) -> Self:
        """Return the model with inner values as outputs too: this one stays as it is.

        Raises
        ------
        TensorNameError
            No node makes such a value.
        """
        names = [outputs] if isinstance(outputs, str) else [*outputs]
        made = {name for node in self.nodes for name in node.outputs}
        for name in names:
            if name not in made:
                raise TensorNameError(f"no node of model {self.name!r} makes {name!r}.", name=name)
        warn_if_unused("model = model.add_outputs(...)")
        known = {port.name for port in self.outputs}
        added = [self.spec(name) for name in dict.fromkeys(names) if name not in known]
        larger: Self = self.replace(outputs=[*self.outputs, *added])
        return larger

    def clone(self) -> Self:
        """Return the model, which never changes."""
        return self

    def is_dynamic(self) -> bool:
        """Return whether a port has an open dimension."""
        return not all(port.is_static for port in (*self.inputs, *self.outputs) if port.is_tensor)

    dynamic = property(is_dynamic)

    def reshape(self, shapes: Any) -> Self:
        """Return the model with inputs of other shapes: this one stays as it is.

        Parameters
        ----------
        shapes : shape, or mapping
            The only input's shape, as `PartialShape` reads it; or shapes by name, position or
            port. -1 and intervals leave a dimension open.

        Raises
        ------
        TensorShapeError
            A shape of another rank than the input.
        ModelError
            Shapes that the model's nodes cannot work on.
        """
        given = shapes if isinstance(shapes, Mapping) else {None: shapes}
        inputs = {port.name: port for port in self.inputs}
        for key, shape in given.items():
            port = find_port(self.inputs, key, "input")
            wanted = PartialShape(shape)
            if port.shape is not None and wanted.rank != len(port.shape):
                raise TensorShapeError(
                    f"input {port.name!r} has {len(port.shape)} dimensions ({port}); got {wanted}.",
                    port=port.name,
                )
            inputs[port.name] = replace(port, shape=wanted.values)
        # Shapes that the author noted are those of the old inputs.
        opened = [replace(port, shape=None) if port.is_tensor else port for port in self.outputs]
        old = self.replace(outputs=opened, value_info=())
        new = old.replace(inputs=list(inputs.values()))
        for port in self.outputs:
            if new.spec(port.name).shape is None is not old.spec(port.name).shape:
                shown = ", ".join(f"{name!r} {port.partial_shape}" for name, port in inputs.items())
                raise ModelError(
                    f"model {self.name!r}: with inputs {shown} its nodes cannot make output "
                    f"{port.name!r}; it was made for {', '.join(map(str, self.inputs))}."
                )
        for node in new.nodes:
            if (said := _channels_differ(node, new)) is not None:
                raise ModelError(f"model {self.name!r}: node {node.name!r} {said}.")
        made: Self = new.replace(
            outputs=[replace(port, shape=new.spec(port.name).shape) for port in self.outputs]
        )
        warn_if_unused("model = model.reshape(...)")
        return made


def _used(*keys: Any) -> Any:
    """Return the one of several ways to name a port that was used."""
    return next((key for key in keys if key is not None), None)


def _channels_differ(node: Any, model: Any) -> str | None:
    """Return how a convolution's input does not fit its weights, which ONNX does not infer."""
    if node.domain or node.op_type not in ("Conv", "ConvInteger", "ConvTranspose"):
        return None
    x, w = (model.spec(value).shape for value in node.inputs[:2])
    if not x or not w or len(x) < 2 or len(w) < 2:
        return None
    group = node.attributes.get("group", 1)
    wanted = w[0] if node.op_type == "ConvTranspose" else w[1]
    if not isinstance(x[1], int) or not isinstance(wanted, int):
        return None
    if node.op_type != "ConvTranspose":
        wanted *= group
    return None if x[1] == wanted else f"would get {x[1]} channels; its weights are for {wanted}"
