"""The ONNX Runtime API in hetero.onnxruntime, compared with ONNX Runtime."""

import logging
import threading

import numpy as np
import onnx
import pytest

import hetero

ort = pytest.importorskip("onnxruntime", reason="needs pip install 'hetero[ort]'")

PROTO = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 18], producer_name: "me", model_version: 3>'
    " g (float[N,3] x, float[3] b) => (float[N,3] y, float[N,3] z)"
    " {a = Add(x, b) y = Relu(a) z = Neg(a)}"
)
X, B = np.float32([[1, -2, 3]]), np.float32([1, 1, 1])


@pytest.fixture(scope="module")
def sessions():
    data = PROTO.SerializeToString()
    with hetero.Core("inprocess") as core:
        config = {"MODEL_DISTRIBUTION_POLICY": "PRIORITY"}
        ours = hetero.InferenceSession(data, devices="HETERO:ORT,CPU", config=config, core=core)
        yield ours, ort.InferenceSession(data, providers=["CPUExecutionProvider"])


def test_ports_equal_onnx_runtimes(sessions):
    for ports in ("get_inputs", "get_outputs"):
        ours, theirs = ([(p.name, p.type, p.shape) for p in getattr(s, ports)()] for s in sessions)
        assert ours == theirs
    for session in sessions:
        assert isinstance(session.get_inputs()[1].shape, list)
    ours, theirs = (s.get_modelmeta() for s in sessions)
    for name in ("producer_name", "graph_name", "version", "custom_metadata_map"):
        assert getattr(ours, name) == getattr(theirs, name)


def test_run_equals_onnx_runtimes(sessions):
    ours, theirs = sessions
    for names in (None, [], ["z"], ["z", "y"]):
        for output, expected in zip(
            ours.run(names, {"x": X, "b": B}), theirs.run(names, {"x": X, "b": B}), strict=True
        ):
            np.testing.assert_array_equal(output, expected)
    assert ours.get_providers() == ["ORT"]
    for feed in ({"x": X}, {"x": X, "b": B, "c": B}, {"x": X.astype(complex), "b": B}):
        with pytest.raises(hetero.HeteroError):
            ours.run(None, feed)
    with pytest.raises(KeyError):
        ours.run(["nope"], {"x": X, "b": B})


def test_run_async_calls_back_with_results_or_error(sessions):
    for session in sessions:
        called, calls = threading.Event(), []

        def callback(results, user, error, calls=calls, called=called):
            calls.append((results, user, error))
            called.set()

        session.run_async(["y"], {"x": X, "b": B}, callback, "mine")
        assert called.wait(60)
        ((results, user, error),) = calls
        np.testing.assert_array_equal(results[0], [[2, 0, 4]])
        assert (user, error) == ("mine", "")


def test_io_binding_reads_and_writes_bound_values(sessions):
    for module, session in zip((hetero, ort), sessions, strict=True):
        y_buffer = np.zeros((1, 3), np.float32)
        binding = session.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_ortvalue_input("b", module.OrtValue.ortvalue_from_numpy(B))
        binding.bind_output("z")
        binding.bind_ortvalue_output("y", module.OrtValue.ortvalue_from_numpy(y_buffer))
        session.run_with_iobinding(binding)
        z, y = binding.copy_outputs_to_cpu()
        np.testing.assert_array_equal(z, -(X + B))
        np.testing.assert_array_equal(y, [[2, 0, 4]])
        np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), z)
        (value,) = session.run_with_ort_values(
            ["z"], {n: module.OrtValue.ortvalue_from_numpy(v) for n, v in (("x", X), ("b", B))}
        )
        assert (value.shape(), value.data_type()) == ([1, 3], "tensor(float)")


def test_unfit_bindings_are_named(sessions):
    for module, session in zip((hetero, ort), sessions, strict=True):
        binding = session.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_cpu_input("b", B)
        binding.bind_output("y")
        binding.clear_binding_outputs()
        with pytest.raises(Exception, match=r"(?i)at least one output"):
            session.run_with_iobinding(binding)
        binding.bind_ortvalue_output(
            "y", module.OrtValue.ortvalue_from_numpy(np.zeros((5, 3), "f"))
        )
        with pytest.raises(Exception, match=r"\[?5, ?3") as caught:
            session.run_with_iobinding(binding)
        if module is hetero:
            assert isinstance(caught.value, hetero.TensorShapeError)
            assert caught.value.port == "y"
            wide = module.OrtValue.ortvalue_from_numpy(np.zeros((1, 3)))
            binding.bind_ortvalue_output("y", wide)
            with pytest.raises(hetero.TensorTypeError, match="float64"):
                session.run_with_iobinding(binding)


def test_terminated_run_raises(sessions):
    for module, session in zip((hetero, ort), sessions, strict=True):
        options = module.RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        options.terminate = True
        with pytest.raises(Exception, match="terminate"):
            session.run(["y"], {"x": X, "b": B}, options)
        options.terminate = False
        assert session.run(["y"], {"x": X, "b": B}, options)[0].shape == (1, 3)


def test_providers_select_devices(sessions):
    data = PROTO.SerializeToString()
    for providers in (["CPUExecutionProvider"], [("CPUExecutionProvider", {"a": 1})]):
        session = hetero.InferenceSession(data, providers=providers)
        assert session.get_providers() == ["ORT"]
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
        assert hetero.InferenceSession(data, providers=providers).get_providers() == ["ORT"]
        with pytest.raises(hetero.PluginLoadError, match="onnxruntime-gpu"):
            hetero.InferenceSession(data, providers=providers[:1])
    with pytest.raises(hetero.ArgumentError, match="devices="):
        hetero.InferenceSession(data, providers=[("CUDAExecutionProvider", {"a": 1})])
    with pytest.raises(hetero.ArgumentError, match="'CPUExecutionProvder': expected a name that"):
        hetero.InferenceSession(data, providers=["CPUExecutionProvder"])
    with pytest.raises(hetero.ArgumentError, match="devices="):
        hetero.InferenceSession(
            data, providers=["CUDAExecutionProvider"], provider_options=[{"a": 1}], devices="CPU"
        )
    with pytest.raises(hetero.ArgumentError, match="one for each"):
        hetero.InferenceSession(data, provider_options=[{"a": 1}])
    with pytest.raises(hetero.UnsupportedOperationError, match="cuda"):
        hetero.OrtValue.ortvalue_from_numpy(X, "cuda")


def test_arrays_of_other_types_are_refused(sessions):
    """Calls of the OpenVINO API convert them; those of ONNX Runtime do not."""
    for session in sessions:
        with pytest.raises(Exception, match=r"float64|double"):
            session.run(None, {"x": X.astype(np.float64), "b": B})


def test_run_options_and_module_functions_work(sessions):
    for module, session in zip((hetero, ort), sessions, strict=True):
        options = module.RunOptions()
        options.logid = "mine"
        np.testing.assert_array_equal(
            session.run(["y"], {"x": X, "b": B}, run_options=options)[0], [[2, 0, 4]]
        )
        assert module.get_device() in ("CPU", "GPU")
        assert module.get_version_string()
        assert module.get_available_providers()[0] in module.get_all_providers()


def test_session_options_of_published_packages_are_accepted():
    """Published packages set these options before they create a session."""
    data = PROTO.SerializeToString()
    for module, more in ((hetero, {"devices": "CPU"}), (ort, {})):
        module.disable_telemetry_events()
        options = module.SessionOptions()
        options.log_severity_level = 4
        options.enable_cpu_mem_arena = False
        options.graph_optimization_level = module.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.inter_op_num_threads = options.intra_op_num_threads = 1
        options.execution_mode = module.ExecutionMode.ORT_SEQUENTIAL
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = module.InferenceSession(data, sess_options=options, **more)
        np.testing.assert_array_equal(session.run(["y"], {"x": X, "b": B})[0], [[2, 0, 4]])
        options.graph_optimization_level = module.GraphOptimizationLevel.ORT_DISABLE_ALL
        ours = hetero.InferenceSession(data, options, devices="ORT")
        assert ours.compiled_model.get_property("DISABLE_TRANSFORMATIONS")
        assert ours.compiled_model.get_property("INFERENCE_NUM_THREADS") == 1
        with pytest.raises(AttributeError):
            hetero.SessionOptions().optimized_model_filepath = "elsewhere"


def test_log_severity_applies_to_all_packages():
    logger = logging.getLogger("hetero")
    level_before = logger.level
    try:
        for severity, level in ((0, logging.DEBUG), (2, logging.WARNING), (4, logging.CRITICAL)):
            hetero.set_default_logger_severity(severity)
            assert logger.level == level
        for module in (hetero, ort):
            with pytest.raises((hetero.ArgumentError, RuntimeError), match="severity"):
                module.set_default_logger_severity(5)
    finally:
        logger.setLevel(level_before)
