"""Check that the sizes of a model's inputs are known, because its memory depends on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hetero.devices.errors import PlanError
from hetero.devices.model.model import Model


def require_sizes(model: Model, shapes: Mapping[str, Sequence[int]]) -> None:
    """Raise PlanError if a dimension of an input has no size.

    A symbolic dimension has the size that it has in another input.
    """
    symbols = {
        dimension
        for port in model.inputs
        for dimension in (port.shape or ())
        if port.name in shapes and isinstance(dimension, str)
    }
    missing: dict[str, list[str]] = {}
    for port in model.inputs:
        if not port.is_tensor or port.name in shapes:
            continue
        if port.shape is None:
            missing[port.name] = ["all dimensions"]
            continue
        dimensions = [
            dimension or f"axis {axis}"
            for axis, dimension in enumerate(port.shape)
            if not isinstance(dimension, int) and dimension not in symbols
        ]
        if dimensions:
            missing[port.name] = dimensions
    if not missing:
        return
    text = "; ".join(f"{name}: {', '.join(dims)}" for name, dims in missing.items())
    name, port = next((p.name, p) for p in model.inputs if p.name in missing)
    example = ",".join(str(d) if isinstance(d, int) else "1" for d in port.shape or ("1",))
    raise PlanError(
        f"model {model.name!r}: expected the sizes of all inputs, because memory depends on them; "
        f"got open dimensions ({text}). Set them with --shape {name}={example}, or with "
        "PLAN_SHAPES.",
        constraint="memory",
        open_dimensions={name: tuple(dims) for name, dims in missing.items()},
    )
