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
    except msgspec.MsgspecError as error:
        raise ModelError(
            f"model {model.name!r}: metadata {SAMPLE_KEY} is {text[:80]!r}; expected JSON as "
            '{"shapes": {"x": [1, 3]}, "values": {}}. Remove or correct the entry.'
        ) from error


def sample_inputs(
    model: Model,
    given: Mapping[str, Value] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, Any]:
    """Return a value for each input of a model: the one given, else one that fits.

    A symbol has one size in all inputs: what a given value or shape says of it holds for others.
    """
    given, shapes = given or {}, shapes or {}
    tensors = (port.name for port in model.inputs if port.is_tensor and port.name in given)
    fixed = {name: np.shape(given[name]) for name in tensors} | dict(shapes)
    sizes = _symbol_sizes(model, fixed)
    rng = np.random.default_rng(0)
    return {
        port.name: given[port.name]
        if port.name in given
        else sample_value(port, rng, shapes.get(port.name), sizes)
        for port in model.inputs
    }


def sample_shapes(
    model: Model, given: Mapping[str, Sequence[int]] | None = None
) -> dict[str, tuple[int, ...]]:
    """Return the shapes that `sample_inputs` makes, of the inputs that have open dimensions."""
    given = given or {}
    ports = {port.name: port for port in model.inputs}
    for name, shape in given.items():
        if name not in ports:
            raise TensorNameError(
                f"a shape is given of {name!r}; the inputs are {', '.join(ports) or 'none'}."
            )
        _require_fit(ports[name], tuple(shape))
    sizes = _symbol_sizes(model, given)
    return {
        name: tuple(given[name]) if name in given else _filled(port, sizes)
        for name, port in ports.items()
        if not port.is_static and port.is_tensor and port.shape is not None
    }


def _symbol_sizes(model: Model, fixed: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the size of each symbol that given shapes have in their ports."""
    sizes: dict[str, int] = {}
    for port in model.inputs:
        for dimension, size in zip(port.shape or (), fixed.get(port.name, ()), strict=False):
            if isinstance(dimension, str) and sizes.setdefault(dimension, size) != size:
                raise TensorShapeError(
                    f"input {port.name!r}: dimension {dimension!r} is {size} here and "
                    f"{sizes[dimension]} in another input; it has one size.",
                    port=port.name,
                )
    return sizes


def _filled(port: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(
        d if isinstance(d, int) else sizes.get(d or "", OPEN_DIMENSION) for d in port.shape or ()
    )


def _require_fit(port: TensorSpec, shape: tuple[int, ...]) -> None:
    if not port.accepts(shape):
        raise TensorShapeError(
            f"input {port.name!r} is {port}; shape {list(shape)} does not fit it.", port=port.name
        )


def sample_value(
    port: TensorSpec,
    rng: np.random.Generator,
    shape: tuple[int, ...] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> np.ndarray:
    """Return an array that fits a tensor port; `sizes` are those of the symbols in its shape."""
    if not port.is_tensor or port.dtype is None:
        raise TensorTypeError(
            f"input {port.name!r} is a {port.type or 'value of unknown type'}; only tensors can be "
            "made up: give it a value.",
            port=port.name,
        )
    if shape is None:
        shape = _filled(port, sizes or {})
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
            f"input {port.name!r}: shape {list(shape)} of {port.dtype} does not fit in memory.",
            port=port.name,
        ) from error
