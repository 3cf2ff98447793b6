"""Optional inputs: defaults, overriding, recompilation, cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import hetero
from hetero.devices.errors import TensorNameError, TensorShapeError

DEVICES = ("CPU", "ORT", "HETERO:CPU,ORT")
X = np.float32([[1, -2, 3]])
W = np.float32([[2, 0], [0, 1], [1, 1]])
B = np.float32([10, 20])


def layer(ir_version: int = 8) -> onnx.ModelProto:
    """Return the model y = relu(x w + b), whose inputs w and b have defaults."""
    model = onnx.parser.parse_model(f"""<ir_version: {ir_version}, opset_import: ["": 17]>
        g (float[N, 3] x, float[3, 2] w, float[2] b) => (float[N, 2] y)
        <float[3, 2] w = {{1, 1, 1, 1, 1, 1}}, float[2] b = {{0, 1}}> {{
            p = MatMul(x, w)
            s = Add(p, b)
            y = Relu(s)
        }}""")
    onnx.checker.check_model(model)
    return model


def run_onnxruntime(inputs: dict[str, Any]) -> Sequence[np.ndarray]:
    session = onnxruntime.InferenceSession(layer().SerializeToString())
    outputs: Sequence[np.ndarray] = session.run(None, inputs)
    return outputs


def compile_layer(core: hetero.Core, device: str, config: Any = None) -> hetero.CompiledModel:
    model = core.read_model(layer())
    names = device.partition(":")[2].split(",")
    pins = {n: names[i % 2] for i, n in enumerate(model.node_names)} if len(names) > 1 else None
    return core.compile_model(model, device, config, affinity=pins)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("overrides", [{}, {"w": W}, {"b": B}, {"w": W, "b": B}])
@pytest.mark.parametrize("exported", [False, True])
def test_input_overrides_the_default(core, device, overrides, exported):
    compiled = compile_layer(core, device)
    if exported:
        compiled = core.import_model(compiled.export_model())
    expected = run_onnxruntime({"x": X} | overrides)
    np.testing.assert_allclose(compiled({"x": X} | overrides)[0], expected[0], rtol=1e-6)
    np.testing.assert_allclose(compiled([X])[0], run_onnxruntime({"x": X})[0], rtol=1e-6)


def test_inputs_exclude_optional_inputs(core):
    compiled = compile_layer(core, "CPU")
    assert [port.name for port in compiled.inputs] == ["x"]
    assert [port.name for port in compiled.optional_inputs] == ["w", "b"]


def test_model_compiles_once_per_set_of_overrides(core, monkeypatch):
    deployments = []
    deploy = type(core.executor).deploy
    monkeypatch.setattr(
        type(core.executor), "deploy", lambda *a, **k: deployments.append(1) or deploy(*a, **k)
    )
    compiled = compile_layer(core, "CPU")
    counts = []
    for overrides in ({}, {"w": W}, {"w": 2 * W}, {}, {"w": W, "b": B}, {"b": B, "w": W}):
        compiled({"x": X, **overrides})
        counts.append(len(deployments))
    assert counts == [1, 2, 2, 2, 3, 3]


def test_set_tensor_persists_and_infer_input_does_not(core):
    request = compile_layer(core, "CPU").create_infer_request()
    with_w, without_w = (run_onnxruntime({"x": X} | overrides)[0] for overrides in ({"w": W}, {}))
    np.testing.assert_allclose(request.infer({"x": X, "w": W})[0], with_w)
    np.testing.assert_allclose(request.infer({"x": X})[0], without_w)
    request.set_tensor("w", hetero.Tensor(W))
    np.testing.assert_allclose(request.infer({"x": X})[0], with_w)


def test_queue_accepts_optional_inputs(core):
    expected = run_onnxruntime({"x": X, "b": B})[0]
    outputs = []
    queue = hetero.AsyncInferQueue(compile_layer(core, "HETERO:CPU,ORT"), jobs=2)
    queue.set_callback(lambda request, userdata: outputs.append(request.results[0]))
    for _ in range(3):
        queue.start_async({"x": X, "b": B})
    queue.wait_all()
    for output in outputs:
        np.testing.assert_allclose(output, expected)
    assert len(outputs) == 3


def test_run_command_accepts_optional_inputs(shell, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(layer().SerializeToString())
    for name, value in {"x": X, "b": B}.items():
        np.save(tmp_path / name, value)
    arguments = [f"{name}={tmp_path / name}.npy" for name in ("x", "b")]
    out = tmp_path / "out.npz"
    result = shell("run", path, "-d", "CPU", "-i", arguments[0], "-i", arguments[1], "-o", out)
    assert result.code == 0, result.err
    np.testing.assert_allclose(np.load(out)["y"], run_onnxruntime({"x": X, "b": B})[0])


def test_wrong_shape_or_name_is_rejected(core):
    compiled = compile_layer(core, "CPU")
    with pytest.raises(TensorShapeError, match="'w'"):
        compiled({"x": X, "w": B})
    with pytest.raises(TensorNameError, match="'v'"):
        compiled({"x": X, "v": B})
    with pytest.raises(TensorNameError, match="'x'"):
        compiled({"w": W})


def test_weights_of_ir_3_are_not_optional_inputs(core):
    compiled = core.compile_model(layer(ir_version=3), "CPU")
    assert compiled.optional_inputs == ()
    with pytest.raises(TensorNameError, match="'w'"):
        compiled({"x": X, "w": W})


def test_close_ends_models_of_overridden_inputs(core):
    compiled = compile_layer(core, "CPU")
    request = compiled.create_infer_request()
    request.infer({"x": X, "w": W})
    compiled.close()
    with pytest.raises(hetero.HeteroError):
        request.infer({"x": X, "w": W})


def test_cache_distinguishes_optional_inputs_from_weights(core, tmp_path):
    config = {"CACHE_DIR": str(tmp_path)}
    without_defaults = layer()
    del without_defaults.graph.input[1:]
    compiled = core.compile_model(without_defaults, "CPU", config)
    assert compiled.optional_inputs == ()
    compiled = compile_layer(core, "CPU", config)
    cached = compile_layer(core, "CPU", config)
    assert cached.get_property("LOADED_FROM_CACHE")
    for model in (compiled, cached):
        expected = run_onnxruntime({"x": X, "b": B})[0]
        np.testing.assert_allclose(model({"x": X, "b": B})[0], expected)


def test_models_of_overridden_inputs_are_cached(core, tmp_path):
    config = {"CACHE_DIR": str(tmp_path)}
    compile_layer(core, "CPU", config)({"x": X, "w": W})
    assert len(list(tmp_path.glob("*.stage"))) == 2
