"""The state of one request: what its model's variables hold from one run to the next."""

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
    """Values of variables, by name; one that is not there is at its beginning."""

    def __init__(self, variables: tuple[Variable, ...], inputs: tuple[TensorSpec, ...]) -> None:
        self.variables = variables
        #: Outputs that are the next values.
        self.outputs = tuple(dict.fromkeys(v.output.name for v in variables))
        #: Symbol -> (input, axis), of the inputs that are given.
        self._symbols = {
            size: (port.name, axis)
            for port in inputs
            for axis, size in enumerate(port.shape or ())
            if isinstance(size, str)
        }
        shapes = tuple(dict.fromkeys(v.input.shape for v in variables))
        #: What variables' ports say of shapes, once each, and which of those each variable's says.
        self._shapes = shapes
        self._kinds = {v.name: shapes.index(v.input.shape) for v in variables}
        self._values: dict[str, Value] = {}
        #: Shapes that values of a kind have.
        self._got: set[tuple[int, tuple[int, ...]]] = set()
        #: Those that the user chose: as inputs, they may differ where symbols are alike.
        self._chosen: set[str] = set()

    def given(self, inputs: Mapping[str, Value]) -> dict[str, Value]:
        """Return what a run with `inputs` reads.

        Raises TensorShapeError: a value does not go with these inputs.
        """
        sizes = [[self._size(size, inputs) for size in shape or ()] for shape in self._shapes]
        is_whole = len(self._values) == len(self.variables)
        if is_whole and all(_go_with(sizes[kind], shape) for kind, shape in self._got):
            return self._values
        return {v.name: self._value(v.input, sizes[self._kinds[v.name]]) for v in self.variables}

    def commit(self, outputs: Mapping[str, Value]) -> None:
        """Take over what a run that was answered gave."""
        self._take_over({v.input.name: outputs[v.output.name] for v in self.variables})

    def hold(self, values: Mapping[str, Value]) -> bool:
        """Whether values that are kept are those that the next run reads."""
        own = self._values
        return all(
            type(own.get(name)) is ResidentTensor and own[name] == v for name, v in values.items()
        )

    def join(
        self, parts: Sequence[tuple[RequestStates, Sequence[int]]], layouts: Mapping[str, RowLayout]
    ) -> None:
        """Take over rows of others, where they are kept.

        `layouts`: how rows lie, for each variable.
        """
        made: dict[str, tuple[list[tuple[Any, Sequence[int]]], RowLayout]] = {
            name: ([(_tensor(states._values[name]), rows) for states, rows in parts], layout)
            for name, layout in layouts.items()
        }
        left = {
            name: one
            for name, one in made.items()
            if all(isinstance(v, RemoteTensor) and v.by_reference for v, _ in one[0])
        }
        values = {
            name: join_rows([(_on_host(value), rows) for value, rows in each], layout)
            for name, (each, layout) in made.items()
            if name not in left
        }
        if left:
            values |= next(iter(left.values()))[0][0][0].joined(left)
        self._take_over(values)

    def get(self, variable: Variable) -> Value:
        """Return a value, on the host."""
        value = self._values.get(variable.name)
        return empty_tensor(variable.input).data if value is None else _on_host(_tensor(value))

    def set(self, variable: Variable, value: Any) -> None:
        """Have the next run read a value."""
        self._chosen.add(variable.name)
        self._values[variable.name] = convert(value, variable.input, copy=True)

    def reset(self, variable: Variable) -> None:
        """Have the next run begin anew."""
        self._values.pop(variable.name, None)

    def _take_over(self, values: dict[str, Value]) -> None:
        """Have the next run read values that a run gave, and nothing that the user chose."""
        self._chosen.clear()
        self._values, kinds = values, self._kinds
        self._got = {
            (
                kinds[name],
                value.bundle.specs[value.name][1] if type(value) is ResidentTensor else value.shape,
            )
            for name, value in values.items()
        }

    def _value(self, port: TensorSpec, sizes: Sequence[int | None]) -> Value:
        """Return what an input reads in a run where its dimensions have these sizes."""
        value = self._values.get(port.name)
        if value is None:
            whole = None if port.shape is None else tuple([size or 0 for size in sizes])
            return empty_tensor(TensorSpec(port.name, port.type, whole)).data
        shape = _tensor(value).shape
        if port.name not in self._chosen and not _go_with(sizes, shape):
            raise TensorShapeError(
                f"state {port.name!r} ({port}) has shape {list(shape)}, which does not go with "
                "the other inputs: begin anew with reset_state(), or give inputs as before.",
                port=port.name,
            )
        return value

    def _size(self, size: int | str | None, inputs: Mapping[str, Value]) -> int | None:
        """Return a dimension's size in a run; None where nothing but the state says it."""
        if isinstance(size, str) and size in self._symbols:
            name, axis = self._symbols[size]
            return int(inputs[name].shape[axis])
        return size if isinstance(size, int) else None


def _go_with(sizes: Sequence[int | None], shape: Sequence[int]) -> bool:
    """Whether a shape has the sizes that are known."""
    pairs = zip(sizes, shape, strict=False)
    return all(want is None or want == got for want, got in pairs)


def _tensor(value: Value) -> Any:
    """Return a value as its user sees it."""
    return value.tensor if type(value) is ResidentTensor else value


def _on_host(tensor: Any) -> np.ndarray:
    return tensor.to_host() if isinstance(tensor, RemoteTensor) else tensor


class VariableState:
    """One variable of one request.

    Attributes
    ----------
    name : str
        The name of the model's input that reads it.
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
        #: Keeps the request idle; raises RequestBusyError if it is not.
        self._idle = idle

    def __repr__(self) -> str:
        return f"<VariableState {self._variable.input}>"

    @property
    def state(self) -> Tensor:
        """A copy of its value; set it to have the next run read another.

        At the beginning zeros; open dimensions are 0 long, or what the inputs of the next run say.
        """
        with self._idle("state"):
            return Tensor(self._states.get(self._variable))

    @state.setter
    def state(self, value: Any) -> None:
        with self._idle("state"):
            self._states.set(self._variable, value)

    def reset(self) -> None:
        """Have the next run begin anew."""
        with self._idle("reset"):
            self._states.reset(self._variable)
