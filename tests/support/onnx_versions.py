"""Tests that need the newest onnx, because its evaluator or its backend suite is their oracle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import onnx
import pytest
from packaging.version import Version

_ATTENTION: Final = "its evaluator and its cases of Attention are wrong, or lack attributes"
_OPERATORS: Final = "it lacks operators and element types"
#: Test without its parameters, or the beginning of its id -> what onnx before 1.23 lacks for it.
_NEEDS_1_23: Final[Mapping[str, str]] = {
    "tests/backend_suite/test_suite.py::test_case_passes[CPU-node/test_attention_": _ATTENTION,
    "tests/backend_suite/test_suite.py::test_case_passes[HETERO:ORT,CPU-node/test_attention_": (
        _ATTENTION
    ),
    "tests/backend_suite/test_suite.py::test_case_passes[CPU-node/test_qlinearmatmul_2D_int8_": (
        "its case of QLinearMatMul wraps around instead of saturating"
    ),
    "tests/backend_suite/test_suite.py::test_every_expected_failure_is_a_case": _OPERATORS,
    "tests/backend_suite/test_suite.py::test_most_cases_pass_on_cpu": _OPERATORS,
    "tests/devices/kernels/test_activation.py::test_swish": _OPERATORS,
    "tests/devices/kernels/test_operators.py::test_operator[Attention-": _ATTENTION,
    "tests/devices/kernels/test_operators.py::test_operator[RotaryEmbedding-": _ATTENTION,
    "tests/devices/kernels/test_operators.py::test_operator[TensorScatter-": _OPERATORS,
    "tests/devices/kernels/test_cast.py::test_float8_e8m0_of_negative_numbers": (
        "it rounds negative numbers differently"
    ),
    "tests/devices/kernels/test_resize.py::test_antialias": "its evaluator fails",
    "tests/devices/kernels/test_resize.py::test_resize_rounds_and_clips": "its evaluator fails",
    "tests/devices/kernels/test_schema.py::test_every_kernel_": _OPERATORS,
    "tests/devices/kernels/test_shape.py::test_space_to_depth_modes": _OPERATORS,
    "tests/devices/kernels/test_types.py::test_nearly_every_kernel_has_a_case": _OPERATORS,
    "tests/devices/model/test_reader.py::test_model_saved_with_external_weights_round_trips"
    "[float6": _OPERATORS,
    "tests/devices/model/test_type_inference_worker.py::test_failure_is_returned": (
        "it does not refuse garbage"
    ),
}


def skip_for_older_onnx(items: Iterable[pytest.Item]) -> None:
    """Skip the tests that need the newest onnx if an older one is installed."""
    if Version(onnx.__version__) >= Version("1.23"):
        return
    for item in items:
        for prefix, reason in _NEEDS_1_23.items():
            if item.nodeid.startswith(prefix):
                item.add_marker(pytest.mark.skip(reason=f"onnx {onnx.__version__}: {reason}"))
