"""A model with a state, whose output is its input in the next run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

import hetero

FED_BACK = parse_model("""<ir_version: 8, opset_import: ["" : 18]>
g (float[2] x, float[2] gain, float[2] before) => (float[2] y, float[2] after, int64 size) {
    after = Add (before, x)
    y = Mul (after, gain)
    size = Size (y)
}""")
X, GAIN = np.asarray([1, 2], np.float32), np.asarray([0.5, 3], np.float32)
STATES = {"before": "after"}
AFFINITY = {"op:Mul": "CPU.1", "op:Size": "CPU.1"}
COUNTS = {"CPU": 2, "ORT": 2, "OV": 1}
#: Devices, which of them has y, and which others take its subgraph, or the first, as well.
_OPENVINO = pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")
PLACES = [
    ("CPU.0,CPU.1", "CPU.1", {}),
    pytest.param("OV,ORT.0", "ORT.0", {}, marks=_OPENVINO),
    pytest.param("ORT.0,OV", "OV.CPU", {}, marks=_OPENVINO),
    ("CPU.0,CPU.1,ORT.0", "CPU.1", {"CPU.1": ["ORT.0"]}),
    pytest.param(
        "ORT.0,OV,CPU.0,ORT.1", "OV.CPU", {"OV.CPU": ["CPU.0"], "ORT.0": ["ORT.1"]}, marks=_OPENVINO
    ),
]
NOWHERE = np.full(2, np.nan, np.float32)


def placed(
    core: hetero.Core, devices: str, last: str, others: Mapping[str, Sequence[str]]
) -> hetero.CompiledModel:
    """Return the model on one of `PLACES`."""
    config: Any = {"STAGE_REPLICAS": others} if others else {}
    pins = dict.fromkeys(AFFINITY, last)
    return core.compile_model(FED_BACK, f"HETERO:{devices}", config, affinity=pins, states=STATES)


def wanted(count: int) -> list[np.ndarray]:
    """Return y of so many runs of which each has the y before as its x."""
    found, x, total = [], X, np.zeros(2, np.float32)
    for _ in range(count):
        total = total + x
        x = total * GAIN
        found.append(x)
    return found
