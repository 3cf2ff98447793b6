"""The types and the texts of ONNX Runtime's errors."""

from __future__ import annotations

import pytest

from hetero.devices.errors import DeviceMemoryError, InferenceError
from hetero.devices.ort.errors import ERRORS


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("CUDA failure 2: out of memory ; GPU=0", DeviceMemoryError),
        ("Available memory of 1024 is smaller than requested bytes of 2048", DeviceMemoryError),
        ("std::bad_alloc", DeviceMemoryError),
        ("Got invalid dimensions for input: memory", InferenceError),
    ],
)
def test_run_error_type_follows_the_message(message, kind):
    assert type(ERRORS.run_error("it failed", RuntimeError(message))) is kind


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            (
                "[ONNXRuntimeError] : 1 : FAIL : /onnxruntime/core/providers/cuda/cuda_call.cc:129 "
                "bool CudaCall(T, const char*, std::basic_string<char>&) [with T = cudaError] CUDA "
                "failure 100: no CUDA-capable device is detected"
            ),
            "CUDA failure 100: no CUDA-capable device is detected",
        ),
        ("", "RuntimeError"),
    ],
)
def test_reason_omits_codes_and_source_locations(message, reason):
    assert ERRORS.reason(RuntimeError(message)) == reason
