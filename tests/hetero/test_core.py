"""Core, CompiledModel and the queue over real devices in this process."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import hetero
from hetero.devices import errors
from tests.support.models import branches, branches_output, unknown_ops

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


def test_available_devices_have_the_backends_that_are_installed(core: hetero.Core) -> None:
    assert {"CPU", "ORT", "NULL"} <= set(core.available_devices)


def test_bare_hetero_is_the_automatic_devices_in_their_own_order(core: hetero.Core) -> None:
    devices = core.resolve_devices("HETERO")
    assert "NULL" not in devices
    assert devices.index("ORT") < devices.index("CPU")


def test_query_maps_every_node_to_the_first_device_that_takes_it(core: hetero.Core) -> None:
    support = core.query_model(branches(), "HETERO:ORT,CPU")
    assert dict(support) == dict.fromkeys(core.read_model(branches()).node_names, "ORT")
    assert not support.unsupported


def test_query_lists_every_unsupported_node_with_each_devices_reason(core: hetero.Core) -> None:
    support = core.query_model(unknown_ops(), "HETERO:ORT,CPU")
    assert dict(support) == {"relu": "ORT"}
    assert set(support.unsupported) == {"first", "second"}
    for reasons in support.unsupported.values():
        assert set(reasons) == {"ORT", "CPU"}
        assert all(reason.code and reason.message for reason in reasons.values())


def test_compile_names_all_unsupported_nodes(core: hetero.Core) -> None:
    with pytest.raises(errors.UnsupportedNodesError, match="Frobnicate") as caught:
        core.compile_model(unknown_ops(), "HETERO:ORT,CPU")
    assert "Defenestrate" in str(caught.value)
    assert set(caught.value.unsupported) == {"first", "second"}


@pytest.mark.parametrize("device", ["CPU", "ORT", "HETERO:ORT,CPU", "HETERO"])
def test_results_by_position_and_name(core: hetero.Core, device: str) -> None:
    with core.compile_model(branches(), device) as compiled:
        result = compiled({"x": X})
        np.testing.assert_allclose(result[0], branches_output(X), rtol=1e-6)
        assert result["y"] is result[0] or np.array_equal(result["y"], result[0])


def test_pins_split_the_model_and_the_rest_is_automatic(core: hetero.Core) -> None:
    pins = {"op:Neg": "CPU", "t*": "CPU"}
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity=pins) as compiled:
        placed = compiled.affinity
        assert {n for n, d in placed.items() if d == "CPU"} == {"neg", "tanh"}
        assert len(compiled.subgraphs) == 3
        assert [s.device for s in compiled.subgraphs] == ["ORT", "CPU", "ORT"]
        np.testing.assert_allclose(compiled(X)[0], branches_output(X), rtol=1e-6)


def test_any_affinity_gives_the_bits_of_one_device(core: hetero.Core) -> None:
    with hetero.Core(executor="inprocess", devices={"CPU": 3}) as many:
        names = many.read_model(branches()).node_names
        with many.compile_model(branches(), "CPU.0") as whole:
            want = whole(X)[0]
        for seed in range(10):
            choice = np.random.default_rng(seed).integers(0, 3, len(names))
            pins = {n: f"CPU.{d}" for n, d in zip(names, choice, strict=True)}
            with many.compile_model(branches(), "HETERO", affinity=pins) as split:
                assert np.array_equal(split(X)[0], want)


def test_affinity_from_a_file(core: hetero.Core, tmp_path: Path) -> None:
    path = tmp_path / "pins.yaml"
    path.write_text("op:Tanh: CPU\nneg: CPU\n")
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity=path) as compiled:
        assert compiled.affinity["tanh"] == compiled.affinity["neg"] == "CPU"


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        ({"conv1": "CPU"}, ["conv1"]),
        ({"relu": "TPU"}, ["TPU", "ORT", "CPU"]),
        ({"relu": "NULL"}, ["NULL", "ORT"]),
    ],
)
def test_bad_pins_say_what_is_there(
    core: hetero.Core, pins: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(errors.AffinityError) as caught:
        core.compile_model(branches(), "HETERO:ORT,CPU", affinity=pins)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("inputs", "error", "words"),
    [
        ({}, errors.TensorNameError, ["x"]),
        ({"x": X, "z": X}, errors.TensorNameError, ["z"]),
        ({"X": X}, errors.TensorNameError, ["X", "x"]),
        ({"x": X[:, :2]}, errors.TensorShapeError, ["3", "2"]),
        ({"x": X.astype(complex)}, errors.TensorTypeError, ["complex", "float"]),
    ],
)
def test_bad_inputs_are_refused_and_the_request_lives_on(
    core: hetero.Core, inputs: dict[str, np.ndarray], error: type[Exception], words: list[str]
) -> None:
    with core.compile_model(branches(), "HETERO:ORT,CPU") as compiled:
        with pytest.raises(error) as caught:
            compiled(inputs)
        assert all(word in str(caught.value) for word in words)
        np.testing.assert_allclose(compiled(X)[0], branches_output(X), rtol=1e-6)


@pytest.mark.parametrize(
    ("device", "words"), [("TPU", ["TPU", "CPU"]), ("HETERO:ORT,TPU", ["TPU"]), ("CPU.7", ["CPU"])]
)
def test_unknown_devices_say_what_there_is(
    core: hetero.Core, device: str, words: list[str]
) -> None:
    with pytest.raises(errors.UnknownDeviceError) as caught:
        core.compile_model(branches(), device)
    assert all(word in str(caught.value) for word in words)


def test_unknown_options_say_what_there_is(core: hetero.Core) -> None:
    with pytest.raises(errors.UnknownPropertyError, match="INFERENCE_NUM_THREADS"):
        core.compile_model(branches(), "CPU", {"INFERENCE_NUM_THREAD": 1})


def test_compile_options_win_and_do_not_stick(core: hetero.Core) -> None:
    core.set_property("CPU", {"PERF_COUNT": True})
    core.compile_model(branches(), "CPU", {"PERF_COUNT": False}).close()
    assert core.get_property("CPU", "PERF_COUNT") is True
    core.set_property("CPU", {"PERF_COUNT": False})


def test_models_that_are_none(core: hetero.Core, tmp_path: Path) -> None:
    with pytest.raises(errors.ModelNotFoundError):
        core.read_model(tmp_path / "absent.onnx")
    with pytest.raises(errors.ModelNotFoundError, match="squeezenet"):
        core.read_model("light:squeeze")
    garbage = tmp_path / "garbage.onnx"
    garbage.write_bytes(b"not a model at all")
    with pytest.raises(errors.ModelError, match="not an ONNX model"):
        core.read_model(garbage)
    newer = branches()
    newer.opset_import[0].version = 999
    with pytest.raises(errors.UnsupportedOpsetError, match="999"):
        core.read_model(newer)


def test_subgraphs_are_models_of_their_own(core: hetero.Core) -> None:
    pins = {"op:Tanh": "CPU", "neg": "CPU"}
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity=pins) as compiled:
        for subgraph in compiled.subgraphs:
            onnx.checker.check_model(subgraph.model.to_proto(), full_check=True)
        listed = [name for s in compiled.subgraphs for name in s.node_names]
        assert sorted(listed) == sorted(core.read_model(branches()).node_names)


def test_queue_runs_every_job_and_gives_userdata(core: hetero.Core) -> None:
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity={"tanh": "CPU"}) as compiled:
        queue = hetero.AsyncInferQueue(compiled, jobs=4)
        seen = {}
        queue.set_callback(lambda request, userdata: seen.update({userdata: request.results[0]}))
        for i in range(40):
            queue.start_async({"x": X + i}, userdata=i)
        queue.wait_all()
    assert sorted(seen) == list(range(40))
    for i, value in seen.items():
        np.testing.assert_allclose(value, branches_output(X + i), rtol=1e-5)


def test_a_raising_callback_is_reported_once_and_the_queue_lives_on(core: hetero.Core) -> None:
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


def test_default_queue_overlaps_stages(core: hetero.Core) -> None:
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity={"tanh": "CPU"}) as compiled:
        assert len(hetero.AsyncInferQueue(compiled)) > len({s.device for s in compiled.subgraphs})


def test_runtime_model_covers_the_source(core: hetero.Core) -> None:
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity={"neg": "CPU"}) as compiled:
        rows = compiled.executed_nodes()
    covered = {name for row in rows for name in row.original_names}
    assert covered == set(core.read_model(branches()).node_names)


def test_profiling_names_the_subgraph(core: hetero.Core) -> None:
    with core.compile_model(branches(), "CPU", {"PERF_COUNT": True}) as compiled:
        request = compiled.create_infer_request()
        request.infer(X)
        rows = request.profiling_info
    assert any(row.node_name.startswith("subgraph0: ") and row.status == "EXECUTED" for row in rows)


@pytest.mark.parametrize("take_apart", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_compiled_model_that_is_copied_says_what_to_pass_on(
    core: hetero.Core, take_apart: Callable[[hetero.CompiledModel], object]
) -> None:
    with (
        core.compile_model(branches(), "CPU") as compiled,
        pytest.raises(errors.UnsupportedOperationError, match="export_model"),
    ):
        take_apart(compiled)


def test_a_closed_core_says_so() -> None:
    core = hetero.Core(executor="inprocess")
    core.close()
    with pytest.raises(errors.ClusterError, match="closed"):
        _ = core.available_devices


def test_a_compiled_model_names_one_subgraph_as_one(core: hetero.Core) -> None:
    with core.compile_model(branches(), "CPU") as compiled:
        assert repr(compiled) == "<CompiledModel 'branches': 1 subgraph on CPU>"
