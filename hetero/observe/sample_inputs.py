"""Inputs made to fit a model's ports, to run or measure it where the user gives none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from hetero.devices.errors import TensorNameError, TensorShapeError, TensorTypeError
from hetero.devices.model.model import Model
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.program import Value

#: The size of a dimension that nothing says anything about.
OPEN_DIMENSION: Final = 1


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
