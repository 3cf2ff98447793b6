"""Sample inputs that fit a model's ports, for runs and measurements without user data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from hetero.devices.errors import ModelError, TensorNameError, TensorShapeError, TensorTypeError
from hetero.devices.model.model import Model
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.program import Value

#: Default size of an open dimension.
OPEN_DIMENSION: Final = 1
#: Key of a model's metadata: shapes and values of inputs that are typical of its use, as JSON.
SAMPLE_KEY: Final = "hetero.sample_inputs"


class _Samples(msgspec.Struct, frozen=True):
    """Typical shapes and values of inputs, as the metadata holds them."""

    shapes: dict[str, tuple[int, ...]]
    values: dict[str, list[Any]]


def sample_metadata(
    shapes: Mapping[str, Sequence[int]], values: Mapping[str, np.ndarray]
) -> tuple[str, str]:
    """Return the metadata entry that declares typical shapes and values of inputs."""
    lists = {name: value.tolist() for name, value in values.items()}
    samples = _Samples({name: tuple(shape) for name, shape in shapes.items()}, lists)
    return SAMPLE_KEY, msgspec.json.encode(samples).decode()


def declared_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Return the typical shapes of inputs that the model's metadata declares."""
    ports = {port.name: port for port in model.inputs}
    return {
        name: tuple(shape)
        for name, shape in _samples(model).shapes.items()
        if name in ports and ports[name].accepts(tuple(shape))
    }


def declared_values(model: Model, shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Return the typical values of inputs that the model's metadata declares, at given shapes."""
    dtypes = {port.name: port.dtype for port in model.inputs}
    values = {
        name: np.asarray(value, dtypes[name])
        for name, value in _samples(model).values.items()
        if dtypes.get(name) is not None
    }
    return {
        name: np.broadcast_to(value, tuple(shapes.get(name, value.shape))).copy()
        for name, value in values.items()
    }


def _samples(model: Model) -> _Samples:
    """Read the metadata; other programs may have written it."""
    text = model.metadata.get(SAMPLE_KEY)
    if text is None:
        return _Samples({}, {})
    try:
        return msgspec.json.decode(text, type=_Samples)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ModelError(
            f"model {model.name!r}: metadata {SAMPLE_KEY} is {text[:80]!r}; expected JSON as "
            '{"shapes": {"x": [1, 3]}, "values": {}}. Remove or correct the entry.'
        ) from error


def sample_inputs(
    model: Model,
    values: Mapping[str, Value] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, Any]:
    """Return a value for each input of a model: from `values`, or generated.

    A symbolic dimension has the same size in all inputs: the one in `values` or `shapes`, if any.
    """
    values, shapes = values or {}, shapes or {}
    tensors = (port.name for port in model.inputs if port.is_tensor and port.name in values)
    fixed_shapes = {name: np.shape(values[name]) for name in tensors} | dict(shapes)
    sizes = _symbol_sizes(model, fixed_shapes)
    rng = np.random.default_rng(0)
    return {
        port.name: values[port.name]
        if port.name in values
        else sample_value(port, rng, shapes.get(port.name), sizes)
        for port in model.inputs
    }


def sample_shapes(
    model: Model, shapes: Mapping[str, Sequence[int]] | None = None
) -> dict[str, tuple[int, ...]]:
    """Return the shapes that `sample_inputs` uses for inputs with open dimensions."""
    shapes = shapes or {}
    ports = {port.name: port for port in model.inputs}
    for name, shape in shapes.items():
        if name not in ports:
            raise TensorNameError(
                f"shape of {name!r}: expected an input of model {model.name!r} "
                f"({', '.join(ports) or 'none'})."
            )
        _require_fit(ports[name], tuple(shape))
    sizes = _symbol_sizes(model, shapes)
    return {
        name: tuple(shapes[name]) if name in shapes else _closed_shape(port, sizes)
        for name, port in ports.items()
        if not port.is_static and port.is_tensor and port.shape is not None
    }


def _symbol_sizes(model: Model, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the sizes of symbolic dimensions that follow from the shapes of inputs."""
    sizes: dict[str, int] = {}
    for port in model.inputs:
        for dimension, size in zip(port.shape or (), shapes.get(port.name, ()), strict=False):
            if isinstance(dimension, str) and sizes.setdefault(dimension, size) != size:
                raise TensorShapeError(
                    f"input {port.name!r}: dimension {dimension!r} is {size}, but "
                    f"{sizes[dimension]} in another input; use the same size in both.",
                    port=port.name,
                )
    return sizes


def _closed_shape(port: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(
        d if isinstance(d, int) else sizes.get(d or "", OPEN_DIMENSION) for d in port.shape or ()
    )


def _require_fit(port: TensorSpec, shape: tuple[int, ...]) -> None:
    if not port.accepts(shape):
        raise TensorShapeError(
            f"input {port.name!r}: got shape {list(shape)}, expected one that fits {port}.",
            port=port.name,
        )


def sample_value(
    port: TensorSpec,
    rng: np.random.Generator,
    shape: tuple[int, ...] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> np.ndarray:
    """Return a generated array for a tensor port; `sizes` are sizes of symbolic dimensions."""
    if not port.is_tensor or port.dtype is None:
        raise TensorTypeError(
            f"input {port.name!r} is a {port.type or 'value of unknown type'}; only tensors can be "
            "generated. Pass a value for it.",
            port=port.name,
        )
    if shape is None:
        shape = _closed_shape(port, sizes or {})
    _require_fit(port, shape)
    try:
        if port.dtype == object:
            return np.full(shape, "a", dtype=object)
        if port.dtype.kind == "f":
            return rng.standard_normal(shape).astype(port.dtype)
        # 0 and 1 are valid tokens, masks, flags and indices in nearly every model.
        return rng.integers(0, 2, shape).astype(port.dtype)
    except (MemoryError, ValueError) as error:
        raise TensorShapeError(
            f"input {port.name!r}: an array {list(shape)} of {port.dtype} does not fit in memory.",
            port=port.name,
        ) from error
