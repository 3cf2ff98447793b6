"""Stages that cannot allocate memory: every device raises DeviceMemoryError."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import hetero
from hetero.devices.errors import DeviceMemoryError

#: 64 TiB of floats.
HUGE = np.array([2**22, 2**22], np.int64)


@pytest.mark.parametrize("device", ["CPU", "ORT"])
def test_memory_error_names_device_and_model_survives(device):
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        large (float[1] x, int64[2] s) => (float[a, b] y) { n = Neg(x) y = Expand(n, s) }""")
    x = np.ones(1, np.float32)
    with (
        hetero.Core(executor="inprocess") as core,
        core.compile_model(model, "HETERO:CPU,ORT", affinity={"op:Expand": device}) as compiled,
    ):
        with pytest.raises(DeviceMemoryError, match=f"on device {device} "):
            compiled([x, HUGE])
        assert compiled([x, np.array([2, 3])])[0].shape == (2, 3)
