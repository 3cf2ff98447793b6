"""One model on one list of devices against ONNX Runtime, in a process of its own.

``python -m tests.wild.trial MODEL WAY`` prints what came of it as a line of JSON.
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
from hetero.errors import HeteroError
from tests.support.random_affinity import random_affinity
from tests.wild.saturation import Feeds, explains

#: Name -> the devices, and whether nodes are pinned to them at random.
WAYS: Final = {
    "CPU": ("CPU", False),
    "ORT": ("ORT", False),
    "OV": ("OV", False),
    "priority": ("HETERO:OV,ORT,CPU", False),
    "random": ("HETERO:ORT,CPU", True),
    "ray": ("HETERO:ORT,CPU", True),
}
#: What open dimensions are tried with, until ONNX Runtime runs the model.
_SIZES: Final = (64, 32, 320, 16, 512, 3, 1, 640, 48, 576, 8000)
#: Of numbers: relative to the greatest one.
_TOLERANCE: Final = 1e-3
#: Integers of which so few differ come from a tie.
_FEW: Final = 0.01


def reference(path: str) -> tuple[dict[str, np.ndarray], list[Any]] | str:
    """Return inputs and what ONNX Runtime makes of them, or why it does not."""
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


def differs(got: Any, want: Any) -> str:
    """Return how two outputs differ, empty where they do not."""
    if isinstance(want, list | dict):
        return "" if len(got) == len(want) else f"{len(got)} items, not {len(want)}"
    if got.shape != want.shape or (got.dtype != want.dtype and want.dtype.kind not in "OU"):
        return f"{got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
    if want.dtype.kind in "fc":
        with np.errstate(all="ignore"):
            most = float(np.nanmax(np.abs(want), initial=1.0, where=np.isfinite(want)))
            close = np.isclose(got, want, rtol=_TOLERANCE, atol=_TOLERANCE * most, equal_nan=True)
    else:
        close = np.asarray(got == want)
    share = 1 - float(np.mean(close)) if close.size else 0.0
    return f"{share:.1%} of numbers differ" if share > _FEW else ""


def attempt(path: str, way: str) -> dict[str, str]:
    """Return the outcome and why."""
    found = reference(path)
    if isinstance(found, str):
        return {"outcome": "no reference", "why": found}
    feeds, wanted = found
    devices, pinned = WAYS[way]
    with hetero.Core(executor="ray" if way == "ray" else "inprocess") as core:
        model = core.read_model(path)
        try:
            pins = None
            if pinned:
                pins = random_affinity(core, model, ["ORT", "CPU"], 0)
            compiled = core.compile_model(model, devices, affinity=pins)
            for _ in range(2):  # the second run is the bound one
                results = list(compiled(feeds).values())
        except HeteroError as error:
            return {"outcome": "refused", "why": str(error)}
        why = next((s for g, w in zip(results, wanted, strict=True) if (s := differs(g, w))), "")

        def ours(narrow: str, given: Feeds) -> list[Any]:
            return list(core.compile_model(narrow, devices, affinity=pins)(given).values())

        if why and (reason := explains(path, feeds, ours, _run)):
            return {"outcome": "vendor", "why": f"{why}: {reason}"}
    return {"outcome": "wrong" if why else "right", "why": why}


def _run(path: str, feeds: Feeds) -> Sequence[Any]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found: Sequence[Any] = session.run(None, feeds)
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(attempt(*sys.argv[1:])))
