"""What a program gave out, checked against its inferred types and made its receiver's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from devices.errors import InferenceError
from devices.model.model import Model
from devices.model.tensor_spec import TensorSpec
from devices.plugin.program import Value
from devices.plugin.remote import RemoteTensor

#: An output of a tensor port, on the host or on its device.
_ARRAYS: Final = (np.ndarray, RemoteTensor)


class _Expected(NamedTuple):
    """What a tensor port says of its arrays; `rank` is None where it leaves the shape open."""

    dtype: np.dtype
    rank: int | None
    sizes: tuple[tuple[int, int], ...]
    #: The shape, where all of it is known.
    shape: tuple[int, ...] | None


class StageOutputs:
    """The outputs of one compiled model.

    `ports`: what is certain of each.
    `device`: what runs it, for messages.
    """

    def __init__(self, model: Model, ports: Sequence[TensorSpec], device: str) -> None:
        self._model = model
        self._device = device
        self._ports = tuple(ports)
        self._expected = tuple(map(_expected, self._ports))

    def receive(self, outputs: Sequence[Value], inputs: Sequence[Value]) -> list[Value]:
        """Return what `Program.run` gave, copied where it shares memory with what lives on.

        Raises InferenceError: there are more or fewer than ports, or one is of another element
        type, rank or size than its port.
        """
        if len(outputs) != len(self._expected):
            raise InferenceError(
                f"{self._device} gave {len(outputs)} outputs for model {self._model.name!r}, which "
                f"has {len(self._expected)}: the plugin's Program.run must return one per port.",
                device=self._device,
            )
        taken: set[int] = set()
        _take(inputs, taken)
        received: list[Value] = []
        for value, expected in zip(outputs, self._expected, strict=True):
            if (  # its own memory, as most have
                expected is not None
                and type(value) is np.ndarray
                and value.dtype is expected.dtype
                and value.shape == expected.shape
                and value.base is None
                and value.flags.writeable
                and id(value) not in taken
            ):
                taken.add(id(value))
                received.append(value)
                continue
            tensor = np.asarray(value) if isinstance(value, np.generic) else value
            if expected is not None and not _fits(tensor, expected):
                raise self._unexpected(len(received), tensor)
            received.append(_own(tensor, taken))
        return received

    def _unexpected(self, position: int, value: Value) -> InferenceError:
        model, port = self._model, self._ports[position]
        made = model.producers.get(port.name)
        node = None if made is None else model.nodes[made]
        what = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else repr(value)
        by = f", which node {node.name!r} ({node.op_type}) makes," if node else ""
        return InferenceError(
            f"{self._device} gave {what} as output {port.name!r}{by} of model {model.name!r}; by "
            f"the types and shapes of its inputs it is {port}. Report the device's plugin.",
            device=self._device,
            port=port.name,
            operator=node.name if node else "",
        )


def _expected(port: TensorSpec) -> _Expected | None:
    if port.dtype is None:
        return None
    shape = port.shape
    sizes = tuple((axis, n) for axis, n in enumerate(shape or ()) if isinstance(n, int))
    whole = tuple(n for _, n in sizes)
    fixed = whole if shape is not None and len(whole) == len(shape) else None
    return _Expected(port.dtype, None if shape is None else len(shape), sizes, fixed)


def _fits(value: Value, expected: _Expected) -> bool:
    if not isinstance(value, _ARRAYS):
        return False
    dtype, rank, sizes, fixed = expected
    if (
        value.dtype is not dtype
        and value.dtype != dtype
        and not (dtype.kind == "O" and value.dtype.kind in "UST")
    ):
        return False
    shape = value.shape
    if shape == fixed or rank is None:
        return True
    return len(shape) == rank and (not sizes or all(shape[axis] == n for axis, n in sizes))


def _own(value: Value, taken: set[int]) -> Value:
    """Return a value that shares no memory with what is `taken`, and take its own."""
    if not isinstance(value, np.ndarray):
        return [_own(item, taken) for item in value] if isinstance(value, list) else value
    owner = id(value if value.base is None else _owner(value))
    if not value.flags.writeable or owner in taken:
        return value.copy()
    taken.add(owner)
    return value


def _take(values: Sequence[Value], taken: set[int]) -> None:
    for value in values:
        if isinstance(value, np.ndarray):
            taken.add(id(value if value.base is None else _owner(value)))
        elif isinstance(value, list):
            _take(value, taken)


def _owner(array: np.ndarray) -> Any:
    """Return the object whose memory an array shows."""
    owner: Any = array
    base: Any = array.base
    while base is not None:
        if not isinstance(base, np.ndarray):
            return base
        owner, base = base, base.base
    return owner
