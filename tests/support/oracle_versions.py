"""Tests that need newer versions of onnx or ONNX Runtime, which are their oracles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Final

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
    "tests/devices/kernels/test_types.py::test_types": _OPERATORS,
    "tests/devices/gpu/test_plugin.py::test_onnx_backend_suite_cases_pass": _ATTENTION,
    "tests/devices/gpu/test_plugin.py::test_remainder_by_infinity_is_the_dividend": _OPERATORS,
    "tests/devices/interpreter/test_choices.py::test_query_refuses_invalid_attribute_values": (
        _OPERATORS
    ),
    "tests/devices/interpreter/test_interpreter.py::test_recursive_function_is_refused": (
        "its shape inference crashes"
    ),
    "tests/devices/ort/test_plugin.py::test_refusal_code_and_message[(uint32[2] x)": _OPERATORS,
    "tests/devices/faults/test_openvino.py::test_proof_is_refused_and_runs_on_another_device"
    "[layout=1 is ignored]": "its evaluator fails",
    "tests/features/test_operators.py::test_results_of_all_operators_cross_to": _OPERATORS,
    "tests/devices/model/test_reader.py::test_model_saved_with_external_weights_round_trips"
    "[float6": _OPERATORS,
    "tests/devices/model/test_type_inference_worker.py::test_failure_is_returned": (
        "it does not refuse garbage"
    ),
}

_WRAP: Final = "its Pad repeats wrong elements"
#: Test without its parameters, or the beginning of its id -> what ONNX Runtime before 1.31 computes
#: wrong (`hetero.devices.faults.onnxruntime`).
_NEEDS_ORT_1_31: Final[Mapping[str, str]] = {
    "tests/devices/kernels/test_operators.py::test_operator[Pad-": _WRAP,
    "tests/devices/kernels/test_slicing.py::test_pad_wraps": _WRAP,
    "tests/devices/kernels/test_signal.py::test_stft[parts2-": "its STFT of complex signals",
}
_NEEDS_ORT_1_32: Final[Mapping[str, str]] = {
    "tests/devices/faults/test_nan.py::test_node_that_drops_nan_is_noted[ (int64 y) {y = ArgMax": (
        "its ArgMax propagates NaN"
    ),
}


def skip_for_older_oracles(items: Sequence[pytest.Item]) -> None:
    """Skip the tests whose oracles are of an older version than they need."""
    tables = [("onnx", "1.23", _NEEDS_1_23)]
    if find_spec("onnxruntime"):
        tables += [
            ("onnxruntime", "1.31", _NEEDS_ORT_1_31),
            ("onnxruntime", "1.32", _NEEDS_ORT_1_32),
        ]
    for package, needed, reasons in tables:
        installed = import_module(package).__version__
        if Version(installed) >= Version(needed):
            continue
        for item in items:
            for prefix, reason in reasons.items():
                if item.nodeid.startswith(prefix):
                    item.add_marker(pytest.mark.skip(reason=f"{package} {installed}: {reason}"))
