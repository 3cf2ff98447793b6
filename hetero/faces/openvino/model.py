"""Models that change in place, as OpenVINO's do: `Model` and its ports."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields, replace
from typing import Any, Final, Self

import numpy as np

from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.errors import ArgumentError, ArgumentTypeError, TensorNameError
from hetero.devices.model.element_type import Type
from hetero.devices.model.model import Model as ImmutableModel
from hetero.devices.model.model import header_with
from hetero.devices.model.ov_any import OVAny
from hetero.devices.model.partial_shape import PartialShape, Shape
from hetero.devices.model.ports import PortLookup, find_port
from hetero.devices.model.property_getter import getter
from hetero.devices.model.reader import Source, read_model
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.request.tensor import Tensor
from hetero.faces.openvino.preprocess.build_model import renamed_node
from hetero.faces.openvino.preprocess.layout import Layout

#: The entry of a model's run-time information that ONNX files store, as metadata.
_FRAMEWORK: Final = "framework"


class Output(TensorSpec):
    """A port of a model, with OpenVINO's methods of parameters and results.

    It follows later changes of its model.
    """

    def __init__(self, model: Model, spec: TensorSpec, role: str) -> None:
        super().__init__(spec.name, spec.type, spec.shape, spec.layout)
        self._assign(_model=model, _role=role, _friendly_name=spec.name, _rt_info={}, _bounds=None)
        self._assign(_names={spec.name})

    def _assign(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)  # the base class is frozen

    def update(self, spec: TensorSpec, bounds: PartialShape | None) -> None:
        """Take the type of a value; `bounds` are the limits of its dynamic dimensions."""
        values = {field.name: getattr(spec, field.name) for field in fields(TensorSpec)}
        values["layout"] = Layout(spec.layout) if spec.layout else ""
        self._assign(**values, _bounds=bounds)

    def __setattr__(self, name: str, value: Any) -> None:
        match name:  # OpenVINO's forms of `set_layout` and similar
            case "layout":
                self.set_layout(value)
            case "names":
                self.set_names(value)
            case "friendly_name":
                self.set_friendly_name(value)
            case _:
                raise ArgumentError(
                    f"port {self.name!r}: expected an assignment of layout, names or "
                    f"friendly_name, got {name}."
                )

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Output):
            return self is other
        return isinstance(other, TensorSpec) and TensorSpec.__eq__(self.spec, other)

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<Output: names[{self.name}] shape{self.partial_shape} type: {_type_name(self)}>"

    def __deepcopy__(self, memo: object) -> Output:
        return self

    @property
    def spec(self) -> TensorSpec:
        """The present type, which later changes of the model do not affect."""
        return TensorSpec(self.name, self.type, self.shape, self.layout)

    @property
    def partial_shape(self) -> PartialShape:
        """The shape, with the limits of dynamic dimensions that `Model.reshape` got."""
        bounds: PartialShape | None = self._bounds  # type: ignore[attr-defined]  # see _assign
        return PartialShape(self.shape if bounds is None else bounds)

    def get_partial_shape(self) -> PartialShape:
        """Return `partial_shape`."""
        return self.partial_shape

    @property
    def names(self) -> set[str]:
        """The port's names; files and compiled models have one of them, `name`."""
        return set(self._names)  # type: ignore[attr-defined]  # see _assign

    def get_names(self) -> set[str]:
        """Return `names`."""
        return self.names

    def set_names(self, names: set[str]) -> None:
        """Rename the port; its name stays if it is among several names."""
        self._model.rename(self, self.name if self.name in names else min(names))  # type: ignore[attr-defined]  # see _assign
        self._assign(_names=set(names))

    @property
    def friendly_name(self) -> str:
        """A name for people; the port's own name at first."""
        name: str = self._friendly_name  # type: ignore[attr-defined]  # see _assign
        return name

    def get_friendly_name(self) -> str:
        """Return `friendly_name`."""
        return self.friendly_name

    get_name = get_friendly_name

    def set_friendly_name(self, name: str) -> None:
        """Set the name for people."""
        self._assign(_friendly_name=name)

    @property
    def rt_info(self) -> dict[str, Any]:
        """Run-time information of the port, which can be changed."""
        info: dict[str, Any] = self._rt_info  # type: ignore[attr-defined]  # see _assign
        return info

    get_rt_info = getter(rt_info)

    def get_type_name(self) -> str:
        """Return ``Parameter`` or ``Result``."""
        role: str = self._role  # type: ignore[attr-defined]  # see _assign
        return role

    def get_layout(self) -> Layout:
        """Return the layout."""
        return Layout(self.layout)

    def set_layout(self, layout: str | Layout) -> None:
        """Set the layout, such as ``NCHW`` or ``N...``."""
        label = f"{self.get_type_name()} {self.name!r}"
        letters = "" if self.shape is None else Layout(layout).of_rank(len(self.shape), label)
        self._model.change_port(self, replace(self.spec, layout=letters))  # type: ignore[attr-defined]  # see _assign

    def get_instance_id(self) -> int:
        """Return a number that identifies the port in this process."""
        return id(self)

    def get_output_size(self) -> int:
        """Return the number of values: 1."""
        return 1

    def get_output_element_type(self, index: int = 0) -> Any:
        """Return the element type."""
        return self.element_type

    def get_output_partial_shape(self, index: int = 0) -> PartialShape:
        """Return the shape, which may be dynamic."""
        return self.partial_shape

    def get_output_shape(self, index: int = 0) -> Shape:
        """Return the shape; ArgumentError if a dimension is dynamic."""
        return self.partial_shape.to_shape()

    def output(self, index: int = 0) -> Output:
        """Return the port itself."""
        return self


class Model(ABC, PortLookup):
    """An ONNX model that changes in place, with OpenVINO's methods.

    It refers to an immutable `hetero.Model`, which each change replaces: attributes and methods
    that are not here are those of that model. Models that were compiled before stay as they are.

    Parameters
    ----------
    source : path, bytes, onnx.ModelProto or Model
        The model.
    """

    def __init__(self, source: Source | ImmutableModel) -> None:
        self._source = read_model(source)
        self._rt_info: dict[str, Any] = _wrap(self._source.rt_info)
        self._bounds: dict[str, PartialShape] = {}
        self._inputs = [Output(self, port, "Parameter") for port in self._source.inputs]
        self._outputs = [Output(self, port, "Result") for port in self._source.outputs]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._source, name)

    def __dir__(self) -> Iterable[str]:
        return {*super().__dir__(), *dir(self._source)}

    def __repr__(self) -> str:
        inputs, outputs = (
            ",\n".join(repr(port).replace("<Output", "<ConstOutput") for port in ports)
            for ports in (self.inputs, self.outputs)
        )
        return f"<Model: {self.name!r}\ninputs[\n{inputs}\n]\noutputs[\n{outputs}\n]>"

    def __copy__(self) -> Model:
        return self.clone()

    def __deepcopy__(self, memo: object) -> Model:
        return self.clone()

    def clone(self) -> Model:
        """Return a copy; both share the weights."""
        copy = Model(self._source.clone())
        copy._rt_info = deepcopy(self._rt_info)
        copy._bounds = dict(self._bounds)
        copy._update_ports()
        return copy

    def to_model(self) -> ImmutableModel:
        """Return the model in its present state; it does not change."""
        return self._source

    def replace_contents(self, source: ImmutableModel) -> Self:
        """Replace the contents."""
        self._source = source
        ports = {port.name: port for port in self._inputs}
        self._inputs = [
            ports.get(port.name) or Output(self, port, "Parameter") for port in source.inputs
        ]
        ports = {port.name: port for port in self._outputs}
        self._outputs = [
            ports.get(port.name) or Output(self, port, "Result") for port in source.outputs
        ]
        self._update_ports()
        return self

    def _update_ports(self) -> None:
        for port, spec in zip(self._inputs, self._source.inputs, strict=True):
            bounds = self._bounds.get(spec.name)
            # Limits of another shape are obsolete.
            is_current = bounds is not None and bounds.values == spec.shape
            port.update(spec, bounds if is_current else None)
        for port, spec in zip(self._outputs, self._source.outputs, strict=True):
            port.update(spec, None)

    def change_port(self, port: Output, spec: TensorSpec) -> None:
        """Replace the declared type of a port."""
        role = "inputs" if port in self._inputs else "outputs"
        specs = [spec if old == port else old for old in getattr(self._source, role)]
        self.replace_contents(self._source.replace(**{role: specs}))

    def rename(self, port: Output, name: str) -> None:
        """Rename the value of a port.

        Raises
        ------
        ArgumentError
            Another value has that name.
        """
        old, source = port.name, self._source
        if name == old:
            return
        if name in source.specs or name in source.producers:
            raise ArgumentError(f"model {self.name!r}: another value is named {name!r}.")
        names = {old: name}

        def renamed(spec: TensorSpec) -> TensorSpec:
            return replace(spec, name=name) if spec.name == old else spec

        port.update(replace(port.spec, name=name), None)
        if old in self._bounds:
            self._bounds[name] = self._bounds.pop(old)
        self.replace_contents(
            source.replace(
                nodes=[renamed_node(node, names) for node in source.nodes],
                inputs=[renamed(spec) for spec in source.inputs],
                outputs=[renamed(spec) for spec in source.outputs],
                value_info=[info for info in source.value_info if info.name != old],
            )
        )

    @property
    def inputs(self) -> list[Output]:
        """The input ports."""
        return list(self._inputs)

    @property
    def outputs(self) -> list[Output]:
        """The output ports."""
        return list(self._outputs)

    def input(self, *arguments: Any, **options: Any) -> TensorSpec:
        """Return an input by position or any of its names; without arguments, the only input."""
        return super().input(*_own_names(self._inputs, arguments), **options)

    def output(self, *arguments: Any, **options: Any) -> TensorSpec:
        """Return an output by position or any of its names; without arguments, the only output."""
        return super().output(*_own_names(self._outputs, arguments), **options)

    parameters = inputs
    results = outputs
    get_parameters = getter(inputs)
    get_results = getter(outputs)

    def get_result(self) -> TensorSpec:
        """Return the only output."""
        return self.output()

    result = property(get_result)

    def get_output_op(self, index: int) -> TensorSpec:
        """Return an output by position."""
        return self.output(index)

    def get_parameter_index(self, parameter: TensorSpec) -> int:
        """Return an input's position; -1 if the port is not an input."""
        return self._inputs.index(parameter) if parameter in self._inputs else -1  # type: ignore[arg-type]  # compares with any port

    def get_result_index(self, value: TensorSpec) -> int:
        """Return an output's position; -1 if the port is not an output."""
        return self._outputs.index(value) if value in self._outputs else -1  # type: ignore[arg-type]  # compares with any port

    def set_friendly_name(self, name: str) -> None:
        """Rename the model."""
        self._source = self._source.replace(name=name)

    def reshape(
        self, partial_shape: Any, variables_shapes: Mapping[str, Any] | None = None
    ) -> Self:
        """Change input shapes, and return the model itself.

        Parameters
        ----------
        partial_shape : shape, or mapping
            The shape of the only input, in a form that `PartialShape` accepts; or shapes by name,
            position or port.
        variables_shapes : mapping, optional
            None or empty: states are inputs and outputs in ONNX.

        Raises
        ------
        TensorShapeError
            A shape has another rank than its input.
        ModelError
            The model's nodes cannot process these shapes.
        """
        if variables_shapes:
            raise ArgumentError(
                "variables_shapes: expected none; states are inputs and outputs in ONNX, so "
                "reshape those."
            )
        is_mapping = isinstance(partial_shape, Mapping)
        shapes = dict(partial_shape) if is_mapping else {None: partial_shape}
        # The ports, which may be keys, change with the model.
        by_name = {find_port(self.inputs, key, "input").name: s for key, s in shapes.items()}
        for name, shape in by_name.items():
            if not isinstance(shape, PartialShape | str | list | tuple):
                raise ArgumentTypeError(
                    f"input {name!r}: expected a PartialShape, text, a list or a tuple as shape; "
                    f"got {shape!r}."
                )
        source = self._source.reshape(by_name)
        self._bounds |= {name: PartialShape(shape) for name, shape in by_name.items()}
        return self.replace_contents(source)

    def add_outputs(self, outputs: Any) -> list[Output]:
        """Make inner values outputs, and return the new ports.

        Parameters
        ----------
        outputs : str, (str, int), port, or list of these
            Names of values; or nodes' names with the index of an output.

        Raises
        ------
        TensorNameError
            No node computes such a value.
        """
        names = [self._value_name(o) for o in (outputs if isinstance(outputs, list) else [outputs])]
        return self._append([self._source.spec(name) for name in dict.fromkeys(names)])

    def add_results(self, results: Sequence[TensorSpec]) -> list[Output]:
        """Make values outputs, such as results that were removed."""
        return self.add_outputs([result.name for result in results])

    def _append(self, specs: Sequence[TensorSpec]) -> list[Output]:
        present = {port.name for port in self._outputs}
        new = [spec for spec in specs if spec.name not in present]
        self.replace_contents(self._source.replace(outputs=[*self._source.outputs, *new]))
        return self._outputs[len(self._outputs) - len(new) :]

    def _value_name(self, output: Any) -> str:
        if isinstance(output, TensorSpec):
            output = output.name
        if isinstance(output, tuple) and len(output) == 2:
            node_name, index = output
            if node_name not in self._source.index_of:
                raise TensorNameError(
                    f"model {self.name!r} has no node {node_name!r}.", name=node_name
                )
            node = self._source.nodes[self._source.index_of[node_name]]
            if not 0 <= index < len(node.outputs):
                raise TensorNameError(
                    f"node {node_name!r}: expected an output from 0 to {len(node.outputs) - 1}, "
                    f"got {index}.",
                    name=index,
                )
            output = node.outputs[index]
        if not isinstance(output, str):
            raise ArgumentTypeError(
                "expected the name of a value, a pair of a node's name and an index, or a port; "
                f"got {output!r}."
            )
        if output not in self._source.producers:
            raise TensorNameError(
                f"no node of model {self.name!r} has an output {output!r}.", name=output
            )
        return output

    def remove_result(self, result: TensorSpec) -> None:
        """Remove an output; the nodes stay.

        Raises
        ------
        TensorNameError
            The port is not an output.
        """
        port = find_port(self._outputs, result, "output")
        outputs = [spec for spec in self._source.outputs if spec.name != port.name]
        self.replace_contents(self._source.replace(outputs=outputs))

    def validate_nodes_and_infer_types(self) -> None:
        """Do nothing: types always fit the present model."""

    @property
    def rt_info(self) -> dict[str, Any]:
        """Run-time information; ``framework`` contains the metadata of the ONNX file."""
        return self._rt_info

    def get_rt_info(self, path: str | Sequence[str] = ()) -> Any:
        """Return the entry at a path such as ``["framework", "author"]``.

        Raises
        ------
        ArgumentError
            There is no such entry.
        """
        entry: Any = self._rt_info
        for key in [path] if isinstance(path, str) else path:
            if not isinstance(entry, dict) or key not in entry:
                raise ArgumentError(
                    f"model {self.name!r}: no run-time information at {path!r}; use set_rt_info."
                )
            entry = entry[key]
        return OVAny(entry) if isinstance(entry, dict) and path else entry

    def has_rt_info(self, path: str | Sequence[str]) -> bool:
        """Return whether there is an entry at a path."""
        with suppress(ArgumentError):
            return self.get_rt_info(path) is not None
        return False

    def set_rt_info(self, value: Any, path: str | Sequence[str]) -> None:
        """Set the entry at a path.

        `hetero.openvino.save_model` stores the entries of ``framework`` in the file's metadata.
        """
        *folders, key = [path] if isinstance(path, str) else path
        entry = self._rt_info
        for folder in folders:
            entry = entry.setdefault(folder, {})
        entry[key] = OVAny(value)
        if folders == [_FRAMEWORK]:
            header = header_with(self._source, {key: str(value)})
            self._source = self._source.replace(header=header)

    def evaluate(
        self,
        output_tensors: Sequence[Tensor],
        input_tensors: Sequence[Tensor],
        evaluation_context: Any = None,
    ) -> bool:
        """Run the model once on the CPU kernels of this process, into `output_tensors`."""
        request = CPUPlugin().compile_model(self._source).create_infer_request()
        results = request.infer([np.asarray(tensor.data) for tensor in input_tensors])
        for tensor, value in zip(output_tensors, results.to_tuple(), strict=True):
            tensor.copy_from(value)
        return True


Model.register(ImmutableModel)


def _own_names(ports: Sequence[Output], keys: Iterable[Any]) -> list[Any]:
    """Replace further names of ports by their own names."""
    own_names = {name: port.name for port in ports for name in port.names}
    return [own_names.get(key, key) if isinstance(key, str) else key for key in keys]


def _wrap(entries: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _wrap(value) if isinstance(value, Mapping) else OVAny(value)
        for key, value in entries.items()
    }


def _type_name(port: TensorSpec) -> str:
    return Type(port.element_type).type_name if port.element_type else port.type or "dynamic"
