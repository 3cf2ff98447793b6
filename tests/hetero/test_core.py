"""Core, CompiledModel and AsyncInferQueue with real devices in this process."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import onnx
import pytest

import hetero
from hetero.devices import errors
from tests.support.models import branches, branches_output, unknown_ops

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


def test_available_devices_include_installed_backends(core):
    assert {"CPU", "ORT", "NULL"} <= set(core.available_devices)


def test_hetero_without_devices_selects_automatic_devices(core):
    devices = core.resolve_devices("HETERO")
    assert "NULL" not in devices
    assert devices.index("ORT") < devices.index("CPU")


def test_query_assigns_nodes_to_the_first_supporting_device(core):
    support = core.query_model(branches(), "HETERO:ORT,CPU")
    assert dict(support) == dict.fromkeys(core.read_model(branches()).node_names, "ORT")
    assert not support.unsupported


def test_query_lists_refusals_of_unsupported_nodes(core):
    support = core.query_model(unknown_ops(), "HETERO:ORT,CPU")
    assert dict(support) == {"relu": "ORT"}
    assert set(support.unsupported) == {"first", "second"}
    for reasons in support.unsupported.values():
        assert set(reasons) == {"ORT", "CPU"}
        assert all(reason.code and reason.message for reason in reasons.values())


def test_compile_error_names_all_unsupported_nodes(core):
    with pytest.raises(errors.UnsupportedNodesError, match="Frobnicate") as error_info:
        core.compile_model(unknown_ops(), "HETERO:ORT,CPU")
    assert "Defenestrate" in str(error_info.value)
    assert set(error_info.value.unsupported) == {"first", "second"}


@pytest.mark.parametrize("device", ["CPU", "ORT", "HETERO:ORT,CPU", "HETERO"])
def test_results_by_position_and_name(core, device):
    with core.compile_model(branches(), device) as compiled:
        result = compiled({"x": X})
        np.testing.assert_allclose(result[0], branches_output(X), rtol=1e-6)
        assert result["y"] is result[0] or np.array_equal(result["y"], result[0])


def test_pins_partition_the_model(core):
    pins = {"op:Neg": "CPU", "t*": "CPU"}
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity=pins) as compiled:
        affinity = compiled.affinity
        assert {n for n, d in affinity.items() if d == "CPU"} == {"neg", "tanh"}
        assert len(compiled.subgraphs) == 3
        assert [s.device for s in compiled.subgraphs] == ["ORT", "CPU", "ORT"]
        np.testing.assert_allclose(compiled(X)[0], branches_output(X), rtol=1e-6)


def test_random_affinity_results_equal_those_of_one_device(core):
    with hetero.Core(executor="inprocess", devices={"CPU": 3}) as multi_device_core:
        names = multi_device_core.read_model(branches()).node_names
        with multi_device_core.compile_model(branches(), "CPU.0") as single_device_model:
            expected = single_device_model(X)[0]
        for seed in range(10):
            choice = np.random.default_rng(seed).integers(0, 3, len(names))
            pins = {n: f"CPU.{d}" for n, d in zip(names, choice, strict=True)}
            with multi_device_core.compile_model(
                branches(), "HETERO", affinity=pins
            ) as partitioned_model:
                assert np.array_equal(partitioned_model(X)[0], expected)


def test_affinity_from_a_file(core, tmp_path):
    path = tmp_path / "pins.yaml"
    path.write_text("op:Tanh: CPU\nneg: CPU\n")
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity=path) as compiled:
        assert compiled.affinity["tanh"] == compiled.affinity["neg"] == "CPU"


@pytest.mark.parametrize(
    ("pins", "parts"),
    [
        ({"conv1": "CPU"}, ["conv1"]),
        ({"relu": "TPU"}, ["TPU", "ORT", "CPU"]),
        ({"relu": "NULL"}, ["NULL", "ORT"]),
    ],
)
def test_invalid_pins_error_lists_alternatives(core, pins, parts):
    with pytest.raises(errors.AffinityError) as error_info:
        core.compile_model(branches(), "HETERO:ORT,CPU", affinity=pins)
    assert all(part in str(error_info.value) for part in parts)


@pytest.mark.parametrize(
    ("inputs", "error", "parts"),
    [
        ({}, errors.TensorNameError, ["x"]),
        ({"x": X, "z": X}, errors.TensorNameError, ["z"]),
        ({"X": X}, errors.TensorNameError, ["X", "x"]),
        ({"x": X[:, :2]}, errors.TensorShapeError, ["3", "2"]),
        ({"x": X.astype(complex)}, errors.TensorTypeError, ["complex", "float"]),
    ],
)
def test_invalid_inputs_are_rejected(core, inputs, error, parts):
    with core.compile_model(branches(), "HETERO:ORT,CPU") as compiled:
        with pytest.raises(error) as error_info:
            compiled(inputs)
        assert all(part in str(error_info.value) for part in parts)
        np.testing.assert_allclose(compiled(X)[0], branches_output(X), rtol=1e-6)


@pytest.mark.parametrize(
    ("device", "parts"), [("TPU", ["TPU", "CPU"]), ("HETERO:ORT,TPU", ["TPU"]), ("CPU.7", ["CPU"])]
)
def test_unknown_device_error_lists_devices(core, device, parts):
    with pytest.raises(errors.UnknownDeviceError) as error_info:
        core.compile_model(branches(), device)
    assert all(part in str(error_info.value) for part in parts)


def test_unknown_option_error_lists_options(core):
    with pytest.raises(errors.UnknownPropertyError, match="INFERENCE_NUM_THREADS"):
        core.compile_model(branches(), "CPU", {"INFERENCE_NUM_THREAD": 1})


def test_compile_options_apply_to_one_model(core):
    core.set_property("CPU", {"PERF_COUNT": True})
    core.compile_model(branches(), "CPU", {"PERF_COUNT": False}).close()
    assert core.get_property("CPU", "PERF_COUNT") is True
    core.set_property("CPU", {"PERF_COUNT": False})


def test_invalid_models_are_rejected(core, tmp_path):
    with pytest.raises(errors.ModelNotFoundError):
        core.read_model(tmp_path / "absent.onnx")
    with pytest.raises(errors.ModelNotFoundError, match="squeezenet"):
        core.read_model("light:squeeze")
    garbage = tmp_path / "garbage.onnx"
    garbage.write_bytes(b"not a model at all")
    with pytest.raises(errors.ModelError, match="not an ONNX model"):
        core.read_model(garbage)
    newer_model = branches()
    newer_model.opset_import[0].version = 999
    with pytest.raises(errors.UnsupportedOpsetError, match="999"):
        core.read_model(newer_model)


def test_subgraphs_are_valid_models(core):
    pins = {"op:Tanh": "CPU", "neg": "CPU"}
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity=pins) as compiled:
        for subgraph in compiled.subgraphs:
            onnx.checker.check_model(subgraph.model.to_proto(), full_check=True)
        node_names = [name for s in compiled.subgraphs for name in s.node_names]
        assert sorted(node_names) == sorted(core.read_model(branches()).node_names)


def test_queue_runs_requests_with_userdata(core):
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity={"tanh": "CPU"}) as compiled:
        queue = hetero.AsyncInferQueue(compiled, jobs=4)
        results = {}
        queue.set_callback(lambda request, userdata: results.update({userdata: request.results[0]}))
        for i in range(40):
            queue.start_async({"x": X + i}, userdata=i)
        queue.wait_all()
    assert sorted(results) == list(range(40))
    for i, value in results.items():
        np.testing.assert_allclose(value, branches_output(X + i), rtol=1e-5)


def test_queue_raises_callback_error_once(core):
    with core.compile_model(branches(), "CPU") as compiled:
        queue = hetero.AsyncInferQueue(compiled, jobs=2)
        queue.set_callback(lambda request, userdata: 1 / userdata)
        for i in (1, 0, 1):
            queue.start_async({"x": X}, userdata=i)
        with pytest.raises(ZeroDivisionError):
            queue.wait_all()
        queue.wait_all()
        queue.start_async({"x": X}, userdata=2)
        queue.wait_all()


def test_default_queue_has_more_jobs_than_devices(core):
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity={"tanh": "CPU"}) as compiled:
        assert len(hetero.AsyncInferQueue(compiled)) > len({s.device for s in compiled.subgraphs})


def test_executed_nodes_cover_all_source_nodes(core):
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity={"neg": "CPU"}) as compiled:
        rows = compiled.executed_nodes()
    covered = {name for row in rows for name in row.original_names}
    assert covered == set(core.read_model(branches()).node_names)


def test_profiling_info_contains_the_subgraph(core):
    with core.compile_model(branches(), "CPU", {"PERF_COUNT": True}) as compiled:
        request = compiled.create_infer_request()
        request.infer(X)
        rows = request.profiling_info
    assert any(row.node_name.startswith("subgraph0: ") and row.status == "EXECUTED" for row in rows)


@pytest.mark.parametrize("copy_model", [pickle.dumps, copy.copy, copy.deepcopy])
def test_copying_a_compiled_model_is_rejected(core, copy_model):
    with (
        core.compile_model(branches(), "CPU") as compiled,
        pytest.raises(errors.UnsupportedOperationError, match="export_model"),
    ):
        copy_model(compiled)


def test_closed_core_is_rejected():
    core = hetero.Core(executor="inprocess")
    core.close()
    with pytest.raises(errors.ClusterError, match="closed"):
        _ = core.available_devices


def test_repr_of_compiled_model_with_one_subgraph(core):
    with core.compile_model(branches(), "CPU") as compiled:
        assert repr(compiled) == "<CompiledModel 'branches': 1 subgraph on CPU>"


def test_context_selects_its_device(core):
    context = core.create_context("ORT")
    tensor = context.from_host(X)
    with core.compile_model(branches(), context, {"VERIFY": "NO"}) as compiled:
        assert compiled.get_property("EXECUTION_DEVICES") == ["ORT"]
        assert compiled.get_property("DEVICE_ID") == "0"
        request = compiled.create_infer_request()
        request.set_input_tensor(tensor)
        np.testing.assert_allclose(request.infer()[0], branches_output(X), rtol=1e-6)
        blob = compiled.export_model()
    with core.import_model(blob, context) as imported:
        np.testing.assert_allclose(imported({"x": tensor})[0], branches_output(X), rtol=1e-6)


def test_context_of_another_core_raises(core):
    with hetero.Core("inprocess") as other:
        foreign_context = other.create_context("CPU")
        blob = other.compile_model(branches(), foreign_context).export_model()
    for call in (
        lambda: core.compile_model(branches(), foreign_context),
        lambda: core.import_model(blob, foreign_context),
    ):
        with pytest.raises(errors.ArgumentError, match=r"core.create_context\('CPU'\)"):
            call()
    with pytest.raises(errors.ClusterError, match="this Core is closed; create another"):
        other.compile_model(branches(), foreign_context)


def test_query_with_housekeeping_names_inputs_weights_and_outputs(core):
    model = core.read_model("light:squeezenet")
    support = core.query_model(model, "HETERO:ORT,CPU", include_housekeeping=True)
    ports = {port.name for port in (*model.inputs, *model.outputs)}
    assert set(support) == {*model.node_names, *model.constants, *ports}
    assert set(support) > set(core.query_model(model, "HETERO:ORT,CPU"))


def test_compiled_model_on_several_devices_has_no_device_id(core):
    pins = {"op:Add": "CPU"}
    with (
        core.compile_model(branches(), "HETERO:ORT,CPU", affinity=pins) as compiled,
        pytest.raises(errors.PropertyError, match="expected one device, got "),
    ):
        compiled.get_property("DEVICE_ID")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PERFORMANCE_HINT", "LATENCY"),
        ("PERFORMANCE_HINT_NUM_REQUESTS", 3),
        ("INFERENCE_PRECISION_HINT", "f32"),
        ("LOG_LEVEL", "LOG_ERROR"),
        ("MODEL_PRIORITY", "HIGH"),
    ],
)
def test_options_of_a_single_device_apply_to_its_models(name, value):
    with hetero.Core("inprocess") as own_core:
        own_core.set_property("CPU", {name: value})
        assert own_core.get_property("CPU", name) == value
        with own_core.compile_model(branches(), "CPU") as compiled:
            assert compiled.get_property(name) == value
            assert compiled.create_infer_request().priority == (name == "MODEL_PRIORITY")
        if name != "INFERENCE_PRECISION_HINT":
            with own_core.compile_model(branches(), "HETERO:ORT,CPU") as compiled:
                assert compiled.get_property(name) != value


@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("SUPPORTED_METRICS", "SUPPORTED_PROPERTIES"),
        ("IMPORT_EXPORT_SUPPORT", "OPTIMIZATION_CAPABILITIES, which contains EXPORT_IMPORT,"),
        ("CPU_THROUGHPUT_STREAMS", "NUM_STREAMS"),
    ],
)
def test_keys_of_openvinos_first_api_name_their_replacement(core, name, replacement):
    with pytest.raises(errors.UnknownPropertyError, match=f"Use {replacement} instead"):
        core.get_property("CPU", name)
    with pytest.raises(errors.UnknownPropertyError, match=f"Use {replacement} instead"):
        core.set_property({name: "1"})


def test_capabilities_are_listed_once(core):
    for device in core.available_devices:
        capabilities = core.get_property(device, "OPTIMIZATION_CAPABILITIES")
        assert len(capabilities) == len(set(capabilities))
