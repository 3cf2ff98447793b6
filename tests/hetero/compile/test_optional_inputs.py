"""Inputs with a default: used where not given, overridden by name where given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import hetero
import hetero.backend
from hetero.devices.errors import TensorNameError, TensorShapeError
from tests.support.command_line import Shell

DEVICES = ("CPU", "ORT", "HETERO:CPU,ORT")
X = np.float32([[1, -2, 3]])
W = np.float32([[2, 0], [0, 1], [1, 1]])
B = np.float32([10, 20])


def layer(ir_version: int = 8) -> onnx.ModelProto:
    """Return y = relu(x w + b) whose w and b are inputs with defaults."""
    model = onnx.parser.parse_model(f"""<ir_version: {ir_version}, opset_import: ["": 17]>
        g (float[N, 3] x, float[3, 2] w, float[2] b) => (float[N, 2] y)
        <float[3, 2] w = {{1, 1, 1, 1, 1, 1}}, float[2] b = {{0, 1}}> {{
            p = MatMul(x, w)
            s = Add(p, b)
            y = Relu(s)
        }}""")
    onnx.checker.check_model(model)
    return model


def run_onnxruntime(given: dict[str, Any]) -> Sequence[np.ndarray]:
    session = onnxruntime.InferenceSession(layer().SerializeToString())
    outputs: Sequence[np.ndarray] = session.run(None, given)
    return outputs


def compiled_for(core: hetero.Core, device: str, config: Any = None) -> hetero.CompiledModel:
    model = core.read_model(layer())
    names = device.partition(":")[2].split(",")
    pins = {n: names[i % 2] for i, n in enumerate(model.node_names)} if len(names) > 1 else None
    return core.compile_model(model, device, config, affinity=pins)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("given", [{}, {"w": W}, {"b": B}, {"w": W, "b": B}])
@pytest.mark.parametrize("exported", [False, True])
def test_what_is_given_overrides_the_default(
    core: hetero.Core, device: str, given: dict[str, Any], exported: bool
) -> None:
    compiled = compiled_for(core, device)
    if exported:
        compiled = core.import_model(compiled.export_model())
    want = run_onnxruntime({"x": X} | given)
    np.testing.assert_allclose(compiled({"x": X} | given)[0], want[0], rtol=1e-6)
    np.testing.assert_allclose(compiled([X])[0], run_onnxruntime({"x": X})[0], rtol=1e-6)


def test_ports_are_the_inputs_without_a_default(core: hetero.Core) -> None:
    compiled = compiled_for(core, "CPU")
    assert [port.name for port in compiled.inputs] == ["x"]
    assert [port.name for port in compiled.optional_inputs] == ["w", "b"]


def test_a_model_is_compiled_again_once_for_each_set_of_overridden_inputs(
    core: hetero.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    deploy = type(core.executor).deploy
    monkeypatch.setattr(
        type(core.executor), "deploy", lambda *a, **k: made.append(1) or deploy(*a, **k)
    )
    compiled = compiled_for(core, "CPU")
    counts = []
    for given in ({}, {"w": W}, {"w": 2 * W}, {}, {"w": W, "b": B}, {"b": B, "w": W}):
        compiled({"x": X, **given})
        counts.append(len(made))
    assert counts == [1, 2, 2, 2, 3, 3]


def test_a_tensor_that_is_set_stays_and_one_of_a_call_does_not(core: hetero.Core) -> None:
    request = compiled_for(core, "CPU").create_infer_request()
    with_w, without = (run_onnxruntime({"x": X} | more)[0] for more in ({"w": W}, {}))
    np.testing.assert_allclose(request.infer({"x": X, "w": W})[0], with_w)
    np.testing.assert_allclose(request.infer({"x": X})[0], without)
    request.set_tensor("w", hetero.Tensor(W))
    np.testing.assert_allclose(request.infer({"x": X})[0], with_w)


def test_the_queue_and_the_backend_take_them(core: hetero.Core) -> None:
    want = run_onnxruntime({"x": X, "b": B})[0]
    found = []
    queue = hetero.AsyncInferQueue(compiled_for(core, "HETERO:CPU,ORT"), jobs=2)
    queue.set_callback(lambda request, userdata: found.append(request.results[0]))
    for _ in range(3):
        queue.start_async({"x": X, "b": B})
    queue.wait_all()
    found.append(hetero.backend.run_model(layer(), {"x": X, "b": B})[0])
    for got in found:
        np.testing.assert_allclose(got, want)
    assert len(found) == 4


def test_the_command_line_takes_them(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(layer().SerializeToString())
    for name, value in {"x": X, "b": B}.items():
        np.save(tmp_path / name, value)
    given = [f"{name}={tmp_path / name}.npy" for name in ("x", "b")]
    out = tmp_path / "out.npz"
    ended = shell("run", path, "-d", "CPU", "-i", given[0], "-i", given[1], "-o", out)
    assert ended.code == 0, ended.err
    np.testing.assert_allclose(np.load(out)["y"], run_onnxruntime({"x": X, "b": B})[0])


def test_what_does_not_fit_is_refused(core: hetero.Core) -> None:
    compiled = compiled_for(core, "CPU")
    with pytest.raises(TensorShapeError, match="'w'"):
        compiled({"x": X, "w": B})
    with pytest.raises(TensorNameError, match="'v'"):
        compiled({"x": X, "v": B})
    with pytest.raises(TensorNameError, match="'x'"):
        compiled({"w": W})


def test_before_ir_version_4_weights_are_inputs_that_are_not_given(core: hetero.Core) -> None:
    compiled = core.compile_model(layer(ir_version=3), "CPU")
    assert compiled.optional_inputs == ()
    with pytest.raises(TensorNameError, match="'w'"):
        compiled({"x": X, "w": W})


def test_closing_the_model_ends_what_was_compiled_for_overridden_inputs(core: hetero.Core) -> None:
    compiled = compiled_for(core, "CPU")
    request = compiled.create_infer_request()
    request.infer({"x": X, "w": W})
    compiled.close()
    with pytest.raises(hetero.HeteroError):
        request.infer({"x": X, "w": W})


def test_a_model_with_a_default_is_another_to_the_cache(core: hetero.Core, tmp_path: Any) -> None:
    config = {"CACHE_DIR": str(tmp_path)}
    plain = layer()
    del plain.graph.input[1:]
    compiled = core.compile_model(plain, "CPU", config)
    assert compiled.optional_inputs == ()
    compiled = compiled_for(core, "CPU", config)
    again = compiled_for(core, "CPU", config)
    assert again.get_property("LOADED_FROM_CACHE")
    for model in (compiled, again):
        want = run_onnxruntime({"x": X, "b": B})[0]
        np.testing.assert_allclose(model({"x": X, "b": B})[0], want)
