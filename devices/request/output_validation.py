"""What a program gave out, checked against its inferred types and made its receiver's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.devices.errors import InferenceError
from hetero.devices.model.model import Model
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.program import Value
from hetero.devices.plugin.remote_memory import is_remote


def check_outputs(
    outputs: Sequence[Value],
    inputs: Sequence[Value],
    made: Sequence[TensorSpec],
    model: Model,
    device: str,
) -> list[Value]:
    """Return what `Program.run` gave, copied where it shares memory with what lives on.

    `made`: what is certain of each output; `model` and `device` are for messages. InferenceError:
    there are more or fewer, or one is of another element type, rank or size.
    """
    if len(outputs) != len(made):
        raise InferenceError(
            f"{device} gave {len(outputs)} outputs for model {model.name!r}, which has "
            f"{len(made)}: the plugin's Program.run must return one per port.",
            device=device,
        )
    #: Ids of the objects whose memory inputs, and outputs before, show.
    taken: set[int] = set()
    for value in inputs:
        if type(value) is np.ndarray:
            owner = value
            while type(owner) is np.ndarray and owner.base is not None:
                owner = owner.base
            taken.add(id(owner))
        else:
            _take([value], taken)
    received: list[Value] = []
    for value, port in zip(outputs, made, strict=True):
        dtype = port.dtype
        if type(value) is np.ndarray and value.dtype == dtype:  # most by far
            if not port.accepts(value.shape):
                raise _unexpected(value, port, model, device)
            owner = value
            while type(owner) is np.ndarray and owner.base is not None:
                owner = owner.base
            if not value.flags.writeable or id(owner) in taken:
                value = value.copy()
            else:
                taken.add(id(owner))
            received.append(value)
            continue
        tensor = np.asarray(value) if isinstance(value, np.generic) else value
        if dtype is not None and not _fits(tensor, dtype, port):
            raise _unexpected(tensor, port, model, device)
        received.append(_own(tensor, taken))
    return received


def _unexpected(value: Value, port: TensorSpec, model: Model, device: str) -> InferenceError:
    node = model.producer(port.name)
    what = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else repr(value)
    by = f", which node {node.name!r} ({node.op_type}) makes," if node else ""
    return InferenceError(
        f"{device} gave {what} as output {port.name!r}{by} of model {model.name!r}; by the types "
        f"and shapes of its inputs it is {port}. Report the device's plugin.",
        device=device,
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
