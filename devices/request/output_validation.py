"""Validation of a program's outputs, and copies of outputs that share memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hetero.devices.errors import InferenceError
from hetero.devices.model.model import Model
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.program import Value
from hetero.devices.plugin.remote_memory import is_remote


class SharedSize(NamedTuple):
    """A symbol of output shapes that occurs more than once, with its (port, axis) pairs."""

    symbol: str
    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int], ...]


def shared_sizes(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> tuple[SharedSize, ...]:
    """Return the symbols of outputs whose size other ports of the same run determine."""
    axes: dict[str, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    for role, ports in enumerate((inputs, outputs)):
        for index, port in enumerate(ports):
            for axis, dimension in enumerate(port.shape or ()):
                if isinstance(dimension, str):
                    axes.setdefault(dimension, ([], []))[role].append((index, axis))
    return tuple(
        SharedSize(symbol, tuple(of_inputs), tuple(of_outputs))
        for symbol, (of_inputs, of_outputs) in axes.items()
        if of_outputs and len(of_inputs) + len(of_outputs) > 1
    )


def check_shared_sizes(
    symbols: Sequence[SharedSize],
    outputs: list[Value],
    inputs: Sequence[Value],
    specs: Sequence[TensorSpec],
    model: Model,
    device: str,
) -> bool:
    """Return whether each symbol has one size in a run; an empty output is replaced if not.

    The next node would broadcast an output of size 1 without an error. If the inputs already
    disagree, the model's names of sizes are only labels, and prove nothing.

    Raises InferenceError: an output with elements has another size.
    """
    is_consistent = True
    for symbol, input_axes, output_axes in symbols:
        sizes = {inputs[index].shape[axis] for index, axis in input_axes}
        if len(sizes) > 1:
            continue
        expected_size = next(iter(sizes), None)
        for index, axis in output_axes:
            output = outputs[index]
            size = output.shape[axis]
            if expected_size is None:
                expected_size = size
            elif size != expected_size:
                shape = (*output.shape[:axis], expected_size, *output.shape[axis + 1 :])
                corrected = _empty_array(output, shape)
                if corrected is None:
                    raise _mismatch(output, specs[index], model, device, f" with one {symbol}")
                outputs[index] = corrected
                is_consistent = False
    return is_consistent


class OutputType:
    """Reliable type of an output.

    `sizes`: the type's shape, with None for each open size; None if the type has no shape.
    `accepted_shape`: the last shape that fits the type, so that equal ones need no check; None if
        the type has no shape.
    """

    __slots__ = ("accepted_shape", "dtype", "sizes", "spec")

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.dtype = spec.dtype
        self.sizes = (
            None
            if spec.shape is None
            else tuple([size if isinstance(size, int) else None for size in spec.shape])
        )
        # An open shape equals no value's.
        self.accepted_shape: tuple[Any, ...] | None = self.sizes


def output_types(specs: Sequence[TensorSpec]) -> tuple[OutputType, ...]:
    """Return the types of outputs as `check_outputs` takes them.

    Equal sizes are one object, so that `check_outputs` recognizes them by identity.
    """
    types = tuple(map(OutputType, specs))
    sizes: dict[Any, Any] = {}
    for output_type in types:
        output_type.sizes = sizes.setdefault(output_type.sizes, output_type.sizes)
    return types


def check_outputs(
    outputs: Sequence[Value],
    inputs: Sequence[Value] | None,
    types: Sequence[OutputType],
    model: Model,
    device: str,
) -> list[Value]:
    """Return the outputs of `Program.run` after checking them against their types.

    An output that shares memory with an input, a constant or another output is copied. `inputs` is
    None if no output does. `model` and `device` appear in messages. Raises InferenceError if the
    number of outputs, or the element type, rank or size of an output is wrong.
    """
    if len(outputs) != len(types):
        raise InferenceError(
            f"{device}: expected {len(types)} outputs of model {model.name!r} from Program.run, "
            f"got {len(outputs)}. Report this to the plugin's author.",
            device=device,
        )
    #: Ids of the objects that own the memory of inputs and earlier outputs.
    owners: set[int] = set()
    for value in inputs or ():
        if type(value) is np.ndarray:
            owner = value
            while type(owner) is np.ndarray and owner.base is not None:
                owner = owner.base
            owners.add(id(owner))
        elif type(value) is list:
            _add_owners(value, owners)
    results: list[Value] = []
    #: Shape and expected sizes of the last remote tensor: states often share both.
    accepted_shape: Any = None
    accepted_sizes: Any = None
    for value, expected in zip(outputs, types, strict=True):
        dtype, shape, port = expected.dtype, expected.accepted_shape, expected.spec
        if type(value) is np.ndarray and value.dtype == dtype:  # fast path for most outputs
            if shape is not None and value.shape != shape:
                if port.accepts(value.shape):
                    expected.accepted_shape = value.shape
                else:
                    corrected = _empty_array(value, _closed_shape(port, value))
                    if corrected is None:
                        raise _mismatch(value, port, model, device)
                    value = corrected
            if inputs is None:
                results.append(value)
                continue
            owner = value
            while type(owner) is np.ndarray and owner.base is not None:
                owner = owner.base
            if not value.flags.writeable or id(owner) in owners:
                value = value.copy()
            else:
                owners.add(id(owner))
            results.append(value)
            continue
        if is_remote(type(value)) and value.dtype == dtype:  # a state on its device
            remote_shape = value.shape
            if remote_shape is not accepted_shape or expected.sizes is not accepted_sizes:
                if remote_shape != shape and not port.accepts(remote_shape):
                    raise _mismatch(value, port, model, device)
                accepted_shape, accepted_sizes = remote_shape, expected.sizes
            results.append(value)
            continue
        tensor = np.asarray(value) if isinstance(value, np.generic) else value
        if dtype is not None and not _is_compatible(tensor, dtype, port):
            raise _mismatch(tensor, port, model, device)
        results.append(_without_aliases(tensor, owners))
    return results


def _empty_array(value: Value, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return an empty array of a shape for one of another shape; None if one has elements.

    ONNX Runtime sets each open size of a loop without iterations to 0.
    """
    if not isinstance(value, np.ndarray) or value.size or math.prod(shape):
        return None
    return np.empty(shape, value.dtype)


def _closed_shape(port: TensorSpec, value: np.ndarray) -> tuple[int, ...]:
    """Return the shape of a port; open sizes are those of a value of its rank, or 0."""
    dimensions = port.shape or ()
    sizes = value.shape if value.ndim == len(dimensions) else (0,) * len(dimensions)
    return tuple(d if isinstance(d, int) else n for d, n in zip(dimensions, sizes, strict=True))


def _mismatch(
    value: Value, port: TensorSpec, model: Model, device: str, condition: str = ""
) -> InferenceError:
    node = model.producer(port.name)
    actual = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else repr(value)
    origin = f" (computed by node {node.name!r}, {node.op_type})" if node else ""
    return InferenceError(
        f"{device}, model {model.name!r}, output {port.name!r}{origin}: expected {port}{condition} "
        f"by the types and shapes of its inputs, got {actual}. Report this to the plugin's author.",
        device=device,
        port=port.name,
        operator=node.name if node else "",
    )


def _is_compatible(value: Value, dtype: np.dtype, port: TensorSpec) -> bool:
    if not (isinstance(value, np.ndarray) or is_remote(type(value))):
        return False
    has_dtype = value.dtype == dtype or (dtype.kind == "O" and value.dtype.kind in "UST")
    return has_dtype and port.accepts(value.shape)


def _without_aliases(value: Value, owners: set[int]) -> Value:
    """Return a value that shares no memory with `owners`, and add the owner of its memory."""
    if not isinstance(value, np.ndarray):
        if isinstance(value, list):
            return [_without_aliases(item, owners) for item in value]
        return value
    owner = id(_memory_owner(value))
    if not value.flags.writeable or owner in owners:
        return value.copy()
    owners.add(owner)
    return value


def _add_owners(values: Sequence[Value], owners: set[int]) -> None:
    for value in values:
        if isinstance(value, np.ndarray):
            owners.add(id(_memory_owner(value)))
        elif isinstance(value, list):
            _add_owners(value, owners)


def _memory_owner(array: np.ndarray) -> Any:
    """Return the object that owns the memory of an array."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner
