"""The ONNX backend interface in hetero.backend, without ONNX's test suite."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.backend.base
import pytest
from onnx import helper

import hetero.backend
from hetero.devices import errors
from tests.support.models import branches, branches_output

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def test_module_has_the_backend_interface():
    assert issubclass(hetero.backend.HeteroBackend, onnx.backend.base.Backend)
    for name in ("prepare", "run_model", "run_node", "supports_device"):
        assert callable(getattr(hetero.backend, name))


@pytest.mark.parametrize("device", ["CPU", "ORT", "HETERO:ORT,CPU"])
@pytest.mark.parametrize("inputs", [[X], (X,), X, {"x": X}], ids=["list", "tuple", "array", "map"])
def test_prepared_model_runs_repeatedly(device, inputs):
    prepared = hetero.backend.prepare(branches(), device)
    for _ in range(2):
        (output,) = prepared.run(inputs)
        np.testing.assert_allclose(output, branches_output(X), rtol=1e-6)
    prepared.close()
    (output,) = hetero.backend.run_model(branches(), inputs, device)
    np.testing.assert_allclose(output, branches_output(X), rtol=1e-6)


def test_keywords_reach_compile_model():
    prepared = hetero.backend.prepare(branches(), "HETERO:ORT,CPU", affinity={"tanh": "CPU"})
    assert prepared.compiled.affinity["tanh"] == "CPU"
    prepared.close()


def test_run_node_equals_the_reference():
    node = helper.make_node("Softmax", ["x"], ["y"], axis=1)
    (by_axis,) = hetero.backend.run_node(node, [X])
    np.testing.assert_allclose(by_axis, np.exp(X) / np.exp(X).sum(1, keepdims=True), rtol=1e-6)
    # Before opset 13, Softmax flattens all dimensions from the axis on.
    whole = helper.make_node("Softmax", ["x"], ["y"], axis=0)
    (by_row,) = hetero.backend.run_node(whole, {"x": X}, opset_version=11)
    np.testing.assert_allclose(by_row, np.exp(X) / np.exp(X).sum(), rtol=1e-6)


def test_run_node_with_absent_input_and_output():
    clip = helper.make_node("Clip", ["x", "", "top"], ["y"])
    (output,) = hetero.backend.run_node(clip, [X, np.float32(0.5)])
    np.testing.assert_array_equal(output, np.minimum(X, np.float32(0.5)))
    drop = helper.make_node("MaxPool", ["x"], ["y", ""], kernel_shape=[1])
    (output,) = hetero.backend.run_node(drop, [X[None]])
    np.testing.assert_array_equal(output, X[None])


def test_run_node_with_several_outputs_and_types():
    node = helper.make_node("TopK", ["x", "k"], ["values", "places"], axis=-1)
    values, places = hetero.backend.run_node(node, [X, np.array([2], np.int64)])
    np.testing.assert_array_equal(values, X[:, :0:-1])
    np.testing.assert_array_equal(places, [[2, 1], [2, 1]])
    assert places.dtype == np.int64


def test_supports_device_knows_available_devices():
    for device in ("CPU", "ORT", "HETERO", "HETERO:ORT,CPU", "CPU.0"):
        assert hetero.backend.supports_device(device)
    for device in ("CUDA", "HETERO:CPU,CUDA", "CPU.9", "", "cpu:0"):
        assert not hetero.backend.supports_device(device)


def test_unsupported_node_raises():
    node = helper.make_node("Frobnicate", ["x"], ["y"], domain="org.example")
    with pytest.raises(errors.UnsupportedNodesError, match="Frobnicate"):
        hetero.backend.run_node(node, [X], opset_version=1)


def test_too_many_inputs_are_refused():
    with pytest.raises(errors.TensorNameError, match="expected at most 1"):
        hetero.backend.run_model(branches(), [X, X])


def test_outputs_keep_the_models_order_and_repetitions():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        twice (float[2, 3] x) => (float[2, 3] z, float[2, 3] y, float[2, 3] z, float[2, 3] x)
        { y = Neg(x) z = Abs(x) }"""
    )
    output = hetero.backend.run_model(model, [X], "HETERO:ORT,CPU", affinity={"op:Abs": "CPU"})
    for one, expected in zip(output, [np.abs(X), -X, np.abs(X), X], strict=True):
        np.testing.assert_array_equal(one, expected)


def test_run_model_leaves_no_deployment():
    deployments = hetero.shared_core.shared_core("inprocess").executor._deployments
    before = set(deployments)
    hetero.backend.run_model(branches(), {"x": X}, "CPU")
    assert set(deployments) <= before


def test_run_model_accepts_optional_inputs():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[2] x, float[2] b) => (float[2] y) <float[2] b = {0, 1}> { y = Add(x, b) }""")
    x, b = np.float32([1, 2]), np.float32([10, 20])
    np.testing.assert_array_equal(hetero.backend.run_model(model, {"x": x, "b": b})[0], x + b)
    np.testing.assert_array_equal(
        hetero.backend.run_model(model, {"x": x})[0], x + np.float32([0, 1])
    )
