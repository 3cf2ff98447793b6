"""State variables of a request: values that its runs pass on to the next run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from hetero.devices.errors import TensorShapeError
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.variables import Variable
from hetero.devices.plugin.program import Value
from hetero.devices.plugin.remote_memory import RemoteTensor, ResidentTensor
from hetero.devices.request.batch_rows import RowLayout, join_rows
from hetero.devices.request.tensor import Tensor, empty_tensor
from hetero.devices.request.tensor_conversion import convert


class RequestStates:
    """Values of a request's state variables; a variable without a value is in its initial state."""

    def __init__(self, variables: tuple[Variable, ...], inputs: tuple[TensorSpec, ...]) -> None:
        self.variables = variables
        #: Names of the outputs with the next values.
        self.outputs = tuple(dict.fromkeys(v.output.name for v in variables))
        #: Names of the inputs, and of their outputs.
        self._input_names = tuple(v.input.name for v in variables)
        self._output_names = tuple(v.output.name for v in variables)
        #: Symbol -> (input, axis) that determines its size in a run.
        self._symbols = {
            size: (port.name, axis)
            for port in inputs
            for axis, size in enumerate(port.shape or ())
            if isinstance(size, str)
        }
        shapes = tuple(dict.fromkeys(v.input.shape for v in variables))
        #: Distinct shapes of the variables' inputs, and each variable's index among them.
        self._shapes = shapes
        self._shape_index = {v.name: shapes.index(v.input.shape) for v in variables}
        #: By distinct shape: axes of a fixed size, and axes whose size is that of an input's axis.
        self._fixed_axes = tuple(
            tuple((axis, size) for axis, size in enumerate(shape or ()) if isinstance(size, int))
            for shape in shapes
        )
        self._symbolic_axes = tuple(
            tuple(
                (axis, *self._symbols[size])
                for axis, size in enumerate(shape or ())
                if isinstance(size, str) and size in self._symbols
            )
            for shape in shapes
        )
        self._values: dict[str, Value] = {}
        #: Distinct pairs of a shape index and the shape of a current value.
        self._value_shapes: set[tuple[int, tuple[int, ...]]] = set()
        #: Variables that the user set. Like inputs, their sizes may contradict the symbols.
        self._user_set: set[str] = set()

    def values_for(self, inputs: Mapping[str, Value]) -> dict[str, Value]:
        """Return the values of all variables for a run with `inputs`.

        Raises TensorShapeError if a value does not fit the inputs.
        """
        if len(self._values) == len(self.variables) and self._fit(inputs):
            return self._values
        sizes = [[self._size(size, inputs) for size in shape or ()] for shape in self._shapes]
        return {
            v.name: self._value(v.input, sizes[self._shape_index[v.name]]) for v in self.variables
        }

    def _fit(self, inputs: Mapping[str, Value]) -> bool:
        """Return whether the shapes of all values fit a run with `inputs`; without calls."""
        for index, shape in self._value_shapes:
            rank = len(shape)
            for axis, size in self._fixed_axes[index]:
                if axis < rank and shape[axis] != size:
                    return False
            for axis, name, input_axis in self._symbolic_axes[index]:
                if axis < rank and shape[axis] != inputs[name].shape[input_axis]:
                    return False
        return True

    def commit(self, outputs: Mapping[str, Value]) -> None:
        """Store the next values from the outputs of a successful run."""
        values = map(outputs.__getitem__, self._output_names)  # without a call for each
        self._replace(dict(zip(self._input_names, values, strict=True)))

    def are_current(self, values: Mapping[str, Value]) -> bool:
        """Return whether these resident tensors are the current values."""
        own_values = self._values
        for name, value in values.items():
            own_value = own_values.get(name)
            if type(own_value) is not ResidentTensor or own_value != value:
                return False
        return True

    def join(
        self, parts: Sequence[tuple[RequestStates, Sequence[int]]], layouts: Mapping[str, RowLayout]
    ) -> None:
        """Replace the values by batches of rows from other requests, on the rows' device.

        `layouts` maps variables to the layout of rows in their tensors.
        """
        joins: dict[str, tuple[list[tuple[Any, Sequence[int]]], RowLayout]] = {
            name: ([(_tensor(states._values[name]), rows) for states, rows in parts], layout)
            for name, layout in layouts.items()
        }
        remote = {
            name: join
            for name, join in joins.items()
            if all(isinstance(v, RemoteTensor) and v.by_reference for v, _ in join[0])
        }
        values = {
            name: join_rows([(_on_host(value), rows) for value, rows in tensor_rows], layout)
            for name, (tensor_rows, layout) in joins.items()
            if name not in remote
        }
        if remote:
            values |= next(iter(remote.values()))[0][0][0].join_rows(remote)
        self._replace(values)

    def get(self, variable: Variable) -> Value:
        """Return the value of a variable on the host."""
        value = self._values.get(variable.name)
        return empty_tensor(variable.input).data if value is None else _on_host(_tensor(value))

    def set(self, variable: Variable, value: Any) -> None:
        """Set the value of a variable for the next run."""
        self._user_set.add(variable.name)
        self._values[variable.name] = convert(value, variable.input, copy=True)

    def reset(self, variable: Variable) -> None:
        """Reset a variable to its initial state."""
        self._values.pop(variable.name, None)

    def _replace(self, values: dict[str, Value]) -> None:
        """Replace all values by the results of a run."""
        self._user_set.clear()
        self._values, indices = values, self._shape_index
        self._value_shapes = {
            (
                indices[name],
                value.bundle.specs[value.name][1] if type(value) is ResidentTensor else value.shape,
            )
            for name, value in values.items()
        }

    def _value(self, port: TensorSpec, sizes: Sequence[int | None]) -> Value:
        """Return the value of a variable for a run in which its dimensions have these sizes."""
        value = self._values.get(port.name)
        if value is None:
            initial = None if port.shape is None else tuple([size or 0 for size in sizes])
            return empty_tensor(TensorSpec(port.name, port.type, initial)).data
        shape = _tensor(value).shape
        if port.name not in self._user_set and not _matches(sizes, shape):
            raise TensorShapeError(
                f"state {port.name!r} ({port}): expected a shape that matches the other inputs, "
                f"got {list(shape)}. Call reset_state(), or pass inputs of the earlier sizes.",
                port=port.name,
            )
        return value

    def _size(self, size: int | str | None, inputs: Mapping[str, Value]) -> int | None:
        """Return a dimension's size in a run; None if the inputs do not determine it."""
        if isinstance(size, str) and size in self._symbols:
            name, axis = self._symbols[size]
            return int(inputs[name].shape[axis])
        return size if isinstance(size, int) else None


def _matches(sizes: Sequence[int | None], shape: Sequence[int]) -> bool:
    """Return whether a shape has the expected sizes; None allows any size."""
    pairs = zip(sizes, shape, strict=False)
    return all(expected is None or expected == size for expected, size in pairs)


def _tensor(value: Value) -> Any:
    """Return a resident tensor as a RemoteTensor, and any other value unchanged."""
    return value.tensor if type(value) is ResidentTensor else value


def _on_host(tensor: Any) -> np.ndarray:
    return tensor.to_host() if isinstance(tensor, RemoteTensor) else tensor


class VariableState:
    """A state variable of a request.

    Attributes
    ----------
    name : str
        Name of the model's input that reads the variable.
    """

    def __init__(
        self,
        variable: Variable,
        states: RequestStates,
        idle: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self.name = variable.name
        self._variable = variable
        self._states = states
        #: Context manager that keeps the request idle, or raises RequestBusyError.
        self._idle = idle

    def __repr__(self) -> str:
        return f"<VariableState {self._variable.input}>"

    @property
    def state(self) -> Tensor:
        """A copy of the value; assign to set the value for the next run.

        The initial state is zeros. Its dynamic dimensions have length 0, or the length that the
        inputs of the next run determine.
        """
        with self._idle("state"):
            return Tensor(self._states.get(self._variable))

    @state.setter
    def state(self, value: Any) -> None:
        with self._idle("state"):
            self._states.set(self._variable, value)

    def reset(self) -> None:
        """Reset the variable to its initial state."""
        with self._idle("reset"):
            self._states.reset(self._variable)
