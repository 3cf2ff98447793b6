"""Inputs and results of compiled models: copies, shared memory, errors."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import hetero
from hetero.devices import errors
from hetero.devices.null.plugin import NullPlugin
from tests.support.array_likes import OnlyArray, OnlyDLPack
from tests.support.models import branches

DEVICES = ("CPU", "ORT", "HETERO:ORT,CPU")
X = np.float32([1, 2, 3, 4])


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')


@pytest.mark.parametrize("convert", [np.asarray, memoryview, OnlyArray, OnlyDLPack])
def test_input_may_be_overwritten_after_start(core, convert):
    model = parse("neg (float[4] x) => (float[4] y, float[4] x) { y = Neg (x) }")
    request = core.compile_model(model, "CPU").create_infer_request()
    array = X.copy()
    request.start_async({"x": convert(array)})
    array[:] = 0
    request.wait()
    np.testing.assert_array_equal(request.results["y"], -X)
    np.testing.assert_array_equal(request.results["x"], X)


@pytest.mark.parametrize("device", DEVICES)
def test_results_share_no_memory(core, device):
    model = parse(
        """many (float[4] x) => (float[4] x, float[4] a, float[2, 2] b, float[4] c, float[4] w)
        <float[4] w = {5, 6, 7, 8}, int64[2] square = {2, 2}>
        {
            a = Neg (x)
            b = Reshape (a, square)
            c = Identity (a)
        }"""
    )
    affinity = {"c": "CPU"} if "," in device else None
    compiled = core.compile_model(model, device, affinity=affinity)
    array, request = X.copy(), compiled.create_infer_request()
    expected = {"x": X, "a": -X, "b": -X.reshape(2, 2), "c": -X, "w": np.float32([5, 6, 7, 8])}
    for name in expected:
        for results in (compiled({"x": array}), request.infer({"x": array})):
            results[name][...] = 99
            np.testing.assert_array_equal(array, X)
            for other_name in expected.keys() - {name}:
                np.testing.assert_array_equal(results[other_name], expected[other_name])
    for port, value in compiled({"x": array}).items():
        np.testing.assert_array_equal(value, expected[port.name])


def test_foreign_remote_tensor_is_rejected_with_a_fix(core):
    model = parse("neg (float[4] x) => (float[4] y) { y = Neg (x) }")
    remote = NullPlugin().create_context().from_host(X)
    request = core.compile_model(model, "HETERO:CPU").create_infer_request()
    with pytest.raises(errors.TensorTypeError, match=r"input 'x'.*tensor\.to_host\(\)"):
        request.infer({"x": remote})
    np.testing.assert_array_equal(request.infer({"x": remote.to_host()})[0], -X)


def test_second_positional_input_is_rejected(core):
    compiled = core.compile_model(branches(), "CPU")
    x = np.ones((2, 3), np.float32)
    for call in (compiled, compiled.create_infer_request().infer):
        with pytest.raises(errors.TensorTypeError, match="as one list or dict"):
            call(x, x)  # type: ignore[arg-type]
    for share in (True, False, 1, np.True_):
        assert compiled(x, share)[0].shape == (2, 4)  # type: ignore[arg-type]


def test_results_before_a_run_are_rejected(core):
    request = core.compile_model(branches(), "CPU").create_infer_request()
    with pytest.raises(errors.RequestNotStartedError, match="call infer"):
        _ = request.results
    request.infer({"x": np.ones((2, 3), np.float32)})
    assert request.results[0].shape == (2, 4)


@pytest.mark.parametrize("item", [None, 3])
def test_object_array_without_strings_is_rejected(core, item):
    model = parse("same (string[2] x) => (string[2] y) { y = Identity (x) }")
    with pytest.raises(
        errors.TensorTypeError, match=f"input 'x': expected an array of str or bytes, got {item}"
    ):
        core.compile_model(model, "CPU")({"x": np.array(["a", item], object)})


@pytest.mark.parametrize("device", DEVICES)
def test_call_without_inputs_is_rejected_after_another_call(core, device):
    compiled = core.compile_model(branches(), device)
    compiled({"x": np.ones((2, 3), np.float32)})
    with pytest.raises(errors.TensorNameError, match="missing: 'x'"):
        compiled()
    request = compiled.create_infer_request()
    request.set_tensor("x", np.ones((2, 3), np.float32))
    assert request.infer()[0].shape == (2, 4)


@pytest.mark.parametrize("priority", [1.5, "1", None])
def test_priority_must_be_an_integer(core, priority):
    compiled = core.compile_model(branches(), "CPU")
    request = compiled.create_infer_request()
    with pytest.raises(hetero.ArgumentTypeError, match="priority: expected an integer"):
        compiled.submit({}, priority=priority)
    with pytest.raises(hetero.ArgumentTypeError, match="priority: expected an integer"):
        request.priority = priority
