"""Size of a tensor whose shape may be partly open."""

from __future__ import annotations

from typing import Any

from hetero.devices.model.tensor_spec import TensorSpec


def tensor_size(spec: TensorSpec) -> dict[str, Any]:
    """Return a tensor's bytes, counting open dimensions as 1, and whether it has any."""
    if spec.nbytes is not None or spec.shape is None:
        return {"nbytes": spec.nbytes, "open_dims": False}
    closed = tuple(d if isinstance(d, int) else 1 for d in spec.shape)
    return {"nbytes": TensorSpec(spec.name, spec.type, closed).nbytes, "open_dims": True}
