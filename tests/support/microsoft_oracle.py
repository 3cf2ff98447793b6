"""Comparison of kernels for ONNX Runtime's own operators with ONNX Runtime and inferred types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hetero.devices.kernels.microsoft import MICROSOFT
from hetero.devices.model.reader import read_model
from tests.support import kernel_oracle


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def some(rng: np.random.Generator, value: Any) -> Any:
    """Return the value or None, with equal probability."""
    return value if rng.random() < 0.5 else None


def check(
    op_type: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None,
    rtol: float,
    atol: float,
    *,
    domain: str = MICROSOFT,
    n_outputs: int = 1,
) -> None:
    """Assert that the kernel's outputs and inferred types equal ONNX Runtime's."""
    opset = 1 if domain else 17
    ours = kernel_oracle.check(
        op_type, inputs, attributes, opset, rtol, atol, domain=domain, n_outputs=n_outputs
    )
    check_types(op_type, inputs, attributes, ours, domain=domain)


def check_types(
    op_type: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None,
    results: Sequence[Any],
    *,
    domain: str = MICROSOFT,
) -> None:
    """Assert that the inferred types and shapes match the results."""
    opset = 1 if domain else 17
    proto = kernel_oracle.one_node_model(op_type, inputs, attributes, opset, domain, len(results))
    model = read_model(proto)
    for i, result in enumerate(results):
        spec = model.spec(f"y{i}")
        assert (spec.dtype, spec.accepts(result.shape)) == (result.dtype, True), (i, spec)
        assert spec.shape is not None, (i, spec)
