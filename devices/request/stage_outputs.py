"""What a program gave out, checked against its inferred types and made its receiver's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from devices.errors import InferenceError
from devices.model.model import Model
from devices.model.tensor_spec import TensorSpec
from devices.plugin.program import Value
from devices.plugin.remote import is_remote


class StageOutputs:
    """The outputs of one compiled model.

    `ports`: what is certain of each.
    `device`: what runs it, for messages.
    """

    def __init__(self, model: Model, ports: Sequence[TensorSpec], device: str) -> None:
        self._model = model
        self._device = device
        self._ports = tuple((port, port.dtype) for port in ports)

    def receive(self, outputs: Sequence[Value], inputs: Sequence[Value]) -> list[Value]:
        """Return what `Program.run` gave, copied where it shares memory with what lives on.

        Raises InferenceError: there are more or fewer than ports, or one is of another element
        type, rank or size than its port.
        """
        if len(outputs) != len(self._ports):
            raise InferenceError(
                f"{self._device} gave {len(outputs)} outputs for model {self._model.name!r}, which "
                f"has {len(self._ports)}: the plugin's Program.run must return one per port.",
                device=self._device,
            )
        taken: set[int] = set()
        _take(inputs, taken)
        received: list[Value] = []
        for value, (port, dtype) in zip(outputs, self._ports, strict=True):
            tensor = np.asarray(value) if isinstance(value, np.generic) else value
            if dtype is not None and not _fits(tensor, dtype, port):
                raise self._unexpected(port, tensor)
            received.append(_own(tensor, taken))
        return received

    def _unexpected(self, port: TensorSpec, value: Value) -> InferenceError:
        model = self._model
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


def _fits(value: Value, dtype: np.dtype, port: TensorSpec) -> bool:
    if not (isinstance(value, np.ndarray) or is_remote(type(value))):
        return False
    same = value.dtype == dtype or (dtype.kind == "O" and value.dtype.kind in "UST")
    return same and port.accepts(value.shape)


def _own(value: Value, taken: set[int]) -> Value:
    """Return a value that shares no memory with what is `taken`, and take its own."""
    if not isinstance(value, np.ndarray):
        return [_own(item, taken) for item in value] if isinstance(value, list) else value
    owner = id(_owner(value))
    if not value.flags.writeable or owner in taken:
        return value.copy()
    taken.add(owner)
    return value


def _take(values: Sequence[Value], taken: set[int]) -> None:
    for value in values:
        if isinstance(value, np.ndarray):
            taken.add(id(_owner(value)))
        elif isinstance(value, list):
            _take(value, taken)


def _owner(array: np.ndarray) -> Any:
    """Return the object whose memory an array shows."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner
