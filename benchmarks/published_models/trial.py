"""Compare one model on one list of devices with ONNX Runtime, in a process of its own.

``python -m benchmarks.published_models.trial MODEL PLACEMENT`` prints the outcome as JSON.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import onnxruntime

import hetero
from benchmarks.published_models.saturation import Feeds, explains
from hetero.errors import HeteroError
from tests.support.random_affinity import random_affinity

#: Name -> the devices, and whether nodes are pinned to them at random.
WAYS: Final = {
    "CPU": ("CPU", False),
    "ORT": ("ORT", False),
    "OV": ("OV", False),
    "priority": ("HETERO:OV,ORT,CPU", False),
    "random": ("HETERO:ORT,CPU", True),
    "ray": ("HETERO:ORT,CPU", True),
}
#: Sizes of open dimensions, tried in this order until ONNX Runtime runs the model.
_SIZES: Final = (64, 32, 320, 16, 512, 3, 1, 640, 48, 576, 8000)
#: Tolerance of floats, relative to the largest one.
_TOLERANCE: Final = 1e-3
#: Accepted share of differing integers: ties are rounded differently.
_TIES: Final = 0.01


def reference(path: str) -> tuple[dict[str, np.ndarray], list[Any]] | str:
    """Return inputs and ONNX Runtime's outputs, or the reason why it refuses the model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    why = ""
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return str(error)
    for size in _SIZES:
        feeds = {port.name: _value(port, size) for port in session.get_inputs()}
        try:
            return feeds, session.run(None, feeds)
        except Exception as error:
            why = str(error)
    return why


def _value(port: Any, size: int) -> np.ndarray:
    rng = np.random.default_rng(len(port.name))
    fixed = [d if isinstance(d, int) and d > 0 else 0 for d in port.shape]
    batch = 1 if len(fixed) == 3 and fixed[0] and fixed[2] else 0  # a state: layers, batch, units
    shape = [d or (1 if axis == batch else size) for axis, d in enumerate(fixed)]
    if "string" in port.type:
        return np.full(shape, "text", object)
    if "float" in port.type or "double" in port.type:
        dtype = {"tensor(double)": "f8", "tensor(float16)": "f2"}.get(port.type, "f4")
        return rng.standard_normal(shape).astype(dtype)
    if "bool" in port.type:
        return np.ones(shape, bool)
    # Masks are 0 and 1: beyond those some runtimes reach infinity sooner than others.
    value = 16000 if port.name in ("sr", "sample_rate") else 1 if "mask" in port.name else None
    kind = port.type[7:-1]
    return np.full(shape, value, kind) if value else rng.integers(1, 3, shape).astype(kind)


def differs(result: Any, expected: Any) -> str:
    """Return the difference of two outputs in words; empty if they agree."""
    if isinstance(expected, list | dict):
        return "" if len(result) == len(expected) else f"{len(result)} items, not {len(expected)}"
    if result.shape != expected.shape or (
        result.dtype != expected.dtype and expected.dtype.kind not in "OU"
    ):
        return f"{result.dtype}{list(result.shape)}, not {expected.dtype}{list(expected.shape)}"
    if expected.dtype.kind in "fc":
        with np.errstate(all="ignore"):
            most = float(np.nanmax(np.abs(expected), initial=1.0, where=np.isfinite(expected)))
            close = np.isclose(
                result, expected, rtol=_TOLERANCE, atol=_TOLERANCE * most, equal_nan=True
            )
    else:
        close = np.asarray(result == expected)
    share = 1 - float(np.mean(close)) if close.size else 0.0
    return f"{share:.1%} of numbers differ" if share > _TIES else ""


def attempt(path: str, way: str) -> dict[str, Any]:
    """Return the outcome of a trial, its reason, and what verification found."""
    inputs_and_outputs = reference(path)
    if isinstance(inputs_and_outputs, str):
        return {"outcome": "no reference", "why": inputs_and_outputs}
    feeds, expected = inputs_and_outputs
    devices, pinned = WAYS[way]
    with hetero.Core(executor="ray" if way == "ray" else "inprocess") as core:
        model = core.read_model(path)
        try:
            pins = None
            if pinned:
                pins = random_affinity(core, model, ["ORT", "CPU"], 0)
            compiled = core.compile_model(model, devices, {"VERIFY": "YES"}, affinity=pins)
            results = list(compiled(feeds).values())
        except HeteroError as error:
            return {"outcome": "refused", "why": str(error)}
        verification = compiled.verification.sentences()
        why = next((s for g, w in zip(results, expected, strict=True) if (s := differs(g, w))), "")

        def ours(narrow: str, inputs: Feeds) -> list[Any]:
            return list(core.compile_model(narrow, devices, affinity=pins)(inputs).values())

        if why and (reason := explains(path, feeds, ours, run_reference)):
            return {"outcome": "vendor", "why": f"{why}: {reason}", "verification": verification}
    return {"outcome": "wrong" if why else "right", "why": why, "verification": verification}


def run_reference(path: str, feeds: Feeds) -> Sequence[Any]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs: Sequence[Any] = session.run(None, feeds)
    return outputs


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(attempt(*sys.argv[1:])))
