"""Detect differences that ONNX Runtime's saturating 8-bit products cause.

On processors without VNNI, ONNX Runtime adds two products of unsigned and signed 8-bit numbers in
16 bits, which saturates. Weights of 7 bits never saturate, so the comparison is repeated with
halved weights. Recurrent layers that quantise each step carry the rounding of one tie along; the
accepted difference is therefore that of the reference from itself when inputs and weights change in
their last bits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper

#: Number of runs of the reference with changed last bits, and the size of the change.
_PERTURBED_RUNS: Final = 16
_LAST_BITS: Final = 1e-6
#: Factor on the reference's difference from itself, for perturbations that were not tried.
_MARGIN: Final = 2.0

Feeds = Mapping[str, np.ndarray]
Run = Callable[[str, Feeds], Sequence[Any]]


def explains(path: str, feeds: Feeds, ours: Run, reference: Run) -> str:
    """Return the reason if saturation explains the difference; otherwise an empty string."""
    model = onnx.load(path)
    weights = [w for w in model.graph.initializer if w.data_type == onnx.TensorProto.INT8]
    if not weights:
        return ""
    for weight in weights:
        halved = numpy_helper.to_array(weight) // 2
        weight.CopyFrom(numpy_helper.from_array(halved.astype(np.int8), weight.name))
    with tempfile.TemporaryDirectory() as folder:
        narrow = str(Path(folder) / "model.onnx")
        onnx.save(model, narrow)
        expected, results = reference(narrow, feeds), ours(narrow, feeds)
        noise = [0.0] * len(expected)
        floats = [w for w in model.graph.initializer if w.data_type == onnx.TensorProto.FLOAT]
        exact = {w.name: numpy_helper.to_array(w) for w in floats}
        for seed in range(_PERTURBED_RUNS):
            perturbed = _perturb(exact, seed)
            for weight in floats:
                weight.CopyFrom(numpy_helper.from_array(perturbed[weight.name], weight.name))
            onnx.save(model, narrow)
            nearby = reference(narrow, _perturb(feeds, seed))
            noise = [
                max(level, _relative_error(near, exact_output))
                for level, near, exact_output in zip(noise, nearby, expected, strict=True)
            ]
    errors = [_relative_error(*pair) for pair in zip(results, expected, strict=True)]
    if any(e > max(1e-5, _MARGIN * level) for e, level in zip(errors, noise, strict=True)):
        return ""
    return (
        "ONNX Runtime saturates sums of 8-bit products; with weights of 7 bits the relative "
        f"difference is {max(errors):.1e}, and {max(noise):.1e} between its own runs with "
        "perturbed floats"
    )


def _perturb(feeds: Feeds, seed: int) -> Feeds:
    rng = np.random.default_rng(seed)
    return {
        name: np.asarray(x * (1 + _LAST_BITS * rng.standard_normal(x.shape)), x.dtype)
        if x.dtype.kind == "f"
        else x
        for name, x in feeds.items()
    }


def _relative_error(result: Any, expected: Any) -> float:
    difference = np.nan_to_num(np.abs(result - expected), nan=np.inf)
    return float(np.max(difference, initial=0) / max(np.nanmax(np.abs(expected)), 1e-9))
