"""The state of one request: what its model's variables hold from one run to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from devices.errors import TensorShapeError
from devices.model.tensor_spec import TensorSpec
from devices.model.variables import Variable
from devices.plugin.program import Value
from devices.plugin.remote import RemoteTensor
from devices.request.joined_rows import RowLayout, join_rows
from devices.request.tensor import Tensor, empty_tensor
from devices.request.tensor_conversion import convert


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
        self._values: dict[str, Value] = {}
        #: Those that the user chose: as inputs, they may differ where symbols are alike.
        self._chosen: set[str] = set()

    def given(self, inputs: Mapping[str, Value]) -> dict[str, Value]:
        """Return what a run with `inputs` reads.

        Raises TensorShapeError: a value does not go with these inputs.
        """
        sizes: dict[Any, list[int | None]] = {}
        return {v.name: self._value(v.input, inputs, sizes) for v in self.variables}

    def commit(self, outputs: Mapping[str, Value]) -> None:
        """Take over what a run that was answered gave."""
        self._chosen.clear()
        self._values = {v.name: outputs[v.output.name] for v in self.variables}

    def join(
        self,
        parts: Sequence[tuple[RequestStates, Sequence[int]]],
        layouts: Mapping[str, RowLayout],
    ) -> None:
        """Take over rows of others, where they are kept.

        `layouts`: how rows lie, for each variable.
        """
        made: dict[str, tuple[list[tuple[Any, Sequence[int]]], RowLayout]] = {
            name: ([(states._values[name], rows) for states, rows in parts], layout)
            for name, layout in layouts.items()
        }
        left = {
            name: one
            for name, one in made.items()
            if all(isinstance(v, RemoteTensor) and v.by_reference for v, _ in one[0])
        }
        values = {
            n: join_rows(map(_on_host, p), how) for n, (p, how) in made.items() if n not in left
        }
        if left:
            values |= next(iter(left.values()))[0][0][0].joined(left)
        self._chosen.clear()
        self._values = values

    def get(self, variable: Variable) -> Value:
        """Return a value, on the host."""
        value = self._values.get(variable.name)
        if value is None:
            return empty_tensor(variable.input).data
        return value.to_host() if isinstance(value, RemoteTensor) else value

    def set(self, variable: Variable, value: Any) -> None:
        """Have the next run read a value."""
        self._chosen.add(variable.name)
        self._values[variable.name] = convert(value, variable.input, copy=True)

    def reset(self, variable: Variable) -> None:
        """Have the next run begin anew."""
        self._values.pop(variable.name, None)

    def _value(
        self, port: TensorSpec, inputs: Mapping[str, Value], known: dict[Any, list[int | None]]
    ) -> Value:
        """Return what an input reads; `known`: sizes of shapes, most states having the same."""
        value, shape = self._values.get(port.name), port.shape
        sizes = known.get(shape)
        if sizes is None:
            sizes = known[shape] = [self._size(size, inputs) for size in shape or ()]
        if value is None:
            whole = None if shape is None else tuple([size or 0 for size in sizes])
            return empty_tensor(TensorSpec(port.name, port.type, whole)).data
        for want, got in zip(sizes, value.shape, strict=False):
            if want != got and want is not None and port.name not in self._chosen:
                raise TensorShapeError(
                    f"state {port.name!r} ({port}) has shape {list(value.shape)}, which does not "
                    "go with the other inputs: begin anew with reset_state(), or give inputs as "
                    "before.",
                    port=port.name,
                )
        return value

    def _size(self, size: int | str | None, inputs: Mapping[str, Value]) -> int | None:
        """Return a dimension's size in a run; None where nothing but the state says it."""
        if isinstance(size, str) and size in self._symbols:
            name, axis = self._symbols[size]
            return int(inputs[name].shape[axis])
        return size if isinstance(size, int) else None


def _on_host(part: tuple[Any, Sequence[int]]) -> tuple[Any, Sequence[int]]:
    value, rows = part
    return (value.to_host() if isinstance(value, RemoteTensor) else value), rows


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
