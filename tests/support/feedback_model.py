"""A model with a state whose output is the input of the next run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

import hetero

FEEDBACK_MODEL = parse_model("""<ir_version: 8, opset_import: ["" : 18]>
g (float[2] x, float[2] gain, float[2] before) => (float[2] y, float[2] after, int64 size) {
    after = Add (before, x)
    y = Mul (after, gain)
    size = Size (y)
}""")
X, GAIN = np.asarray([1, 2], np.float32), np.asarray([0.5, 3], np.float32)
STATES = {"before": "after"}
AFFINITY = {"op:Mul": "CPU.1", "op:Size": "CPU.1"}
COUNTS = {"CPU": 2, "ORT": 2, "OV": 1}
#: Devices, the device of y, and REPLICAS.
_OPENVINO = pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")
DEVICE_CASES = [
    ("CPU.0,CPU.1", "CPU.1", {}),
    pytest.param("OV,ORT.0", "ORT.0", {}, marks=_OPENVINO),
    pytest.param("ORT.0,OV", "OV.CPU", {}, marks=_OPENVINO),
    ("CPU.0,CPU.1,ORT.0", "CPU.1", {"CPU.1": ["ORT.0"]}),
    pytest.param(
        "ORT.0,OV,CPU.0,ORT.1", "OV.CPU", {"OV.CPU": ["CPU.0"], "ORT.0": ["ORT.1"]}, marks=_OPENVINO
    ),
]
UNUSED_INPUT = np.full(2, np.nan, np.float32)


def compile_feedback_model(
    core: hetero.Core, devices: str, last: str, stage_replicas: Mapping[str, Sequence[str]]
) -> hetero.CompiledModel:
    """Compile the model for one of `DEVICE_CASES`."""
    config: Any = {"REPLICAS": stage_replicas} if stage_replicas else {}
    pins = dict.fromkeys(AFFINITY, last)
    return core.compile_model(
        FEEDBACK_MODEL, f"HETERO:{devices}", config, affinity=pins, states=STATES
    )


def expected_outputs(count: int) -> list[np.ndarray]:
    """Return y of `count` runs, where each run has the previous y as x."""
    outputs, x, total = [], X, np.zeros(2, np.float32)
    for _ in range(count):
        total = total + x
        x = total * GAIN
        outputs.append(x)
    return outputs
