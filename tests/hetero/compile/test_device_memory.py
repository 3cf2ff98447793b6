"""A run that wants more memory than there is: the same typed error of every device."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import hetero
from hetero.devices.errors import DeviceMemoryError, InferenceError
from hetero.devices.plugin.failures import reason_of, run_failed

#: 64 TiB of floats.
HUGE = np.array([2**22, 2**22], np.int64)


@pytest.mark.parametrize("device", ["CPU", "ORT"])
def test_the_stage_that_has_no_memory_is_named_and_the_model_goes_on(device: str) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        large (float[1] x, int64[2] s) => (float[a, b] y) { n = Neg(x) y = Expand(n, s) }""")
    one = np.ones(1, np.float32)
    with (
        hetero.Core(executor="inprocess") as core,
        core.compile_model(model, "HETERO:CPU,ORT", affinity={"op:Expand": device}) as compiled,
    ):
        with pytest.raises(DeviceMemoryError, match=f"on device {device} "):
            compiled([one, HUGE])
        assert compiled([one, np.array([2, 3])])[0].shape == (2, 3)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("CUDA failure 2: out of memory ; GPU=0", DeviceMemoryError),
        ("Available memory of 1024 is smaller than requested bytes of 2048", DeviceMemoryError),
        ("std::bad_alloc", DeviceMemoryError),
        ("[GPU] CL_OUT_OF_MEMORY", DeviceMemoryError),
        ("Got invalid dimensions for input: memory", InferenceError),
    ],
)
def test_runtimes_words_for_want_of_memory(words: str, kind: type[Exception]) -> None:
    assert type(run_failed("it failed", RuntimeError(words))) is kind


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            (
                "[ONNXRuntimeError] : 1 : FAIL : /onnxruntime/core/providers/cuda/cuda_call.cc:129 "
                "bool CudaCall(T, const char*, std::basic_string<char>&) [with T = cudaError] CUDA "
                "failure 100: no CUDA-capable device is detected"
            ),
            "CUDA failure 100: no CUDA-capable device is detected",
        ),
        (
            (
                "Exception from src/core.cpp:114:\nException from src/dev/plugin.cpp:53:\n"
                "Check 'newNode' failed at src/node.cpp:1614:\nUnsupported operation"
            ),
            "Unsupported operation",
        ),
        ("", "RuntimeError"),
    ],
)
def test_a_reason_leaves_out_the_places_in_sources(words, reason):
    assert reason_of(RuntimeError(words)) == reason
