"""What a program gave out, checked against its inferred types and made its receiver's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from devices.errors import InferenceError
from devices.model.model import Model
from devices.model.tensor_spec import TensorSpec
from devices.plugin.program import Value
from devices.plugin.remote import is_remote

#: What may share memory.
_SHARING: Final = (np.ndarray, list)


class StageOutputs:
    """The outputs of one compiled model.

    `ports`: what is certain of each.
    `device`: what runs it, for messages.
    """

    def __init__(self, model: Model, ports: Sequence[TensorSpec], device: str) -> None:
        self._model = model
        self._device = device
        self._ports = tuple(ports)
        #: The ports, each with its arrays' type, None for what is no tensor, and a number that
        #: those have in common whose known lengths are the same, as of caches of all layers.
        kinds: dict[tuple[int | None, ...] | None, int] = {}
        self._expected = tuple(
            (port, port.dtype, kinds.setdefault(_known_lengths(port), len(kinds)))
            for port in self._ports
        )

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
        fitting: tuple[int, tuple[int, ...]] | None = None
        for value, (port, dtype, kind) in zip(outputs, self._expected, strict=True):
            if (  # its own memory, as most have
                dtype is not None
                and type(value) is np.ndarray
                and value.dtype is dtype
                and value.base is None
                and port.accepts(value.shape)
                and value.flags.writeable
                and id(value) not in taken
            ):
                taken.add(id(value))
                received.append(value)
                continue
            if dtype is not None and is_remote(type(value)) and value.dtype is dtype:
                found = kind, value.shape
                if found == fitting or port.accepts(value.shape):
                    fitting = found
                    received.append(value)
                    continue
            tensor = np.asarray(value) if isinstance(value, np.generic) else value
            if dtype is not None and not _fits(tensor, dtype, port):
                raise self._unexpected(len(received), tensor)
            received.append(_own(tensor, taken) if isinstance(tensor, _SHARING) else tensor)
        return received

    def _unexpected(self, position: int, value: Value) -> InferenceError:
        model, port = self._model, self._ports[position]
        node = model.maker(port.name)
        what = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else repr(value)
        by = f", which node {node.name!r} ({node.op_type}) makes," if node else ""
        return InferenceError(
            f"{self._device} gave {what} as output {port.name!r}{by} of model {model.name!r}; by "
            f"the types and shapes of its inputs it is {port}. Report the device's plugin.",
            device=self._device,
            port=port.name,
            operator=node.name if node else "",
        )


def _known_lengths(port: TensorSpec) -> tuple[int | None, ...] | None:
    shape = port.shape
    return None if shape is None else tuple([n if isinstance(n, int) else None for n in shape])


def _fits(value: Value, dtype: np.dtype, port: TensorSpec) -> bool:
    if not (isinstance(value, np.ndarray) or is_remote(type(value))):
        return False
    same = value.dtype == dtype or (dtype.kind == "O" and value.dtype.kind in "UST")
    return same and port.accepts(value.shape)


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
