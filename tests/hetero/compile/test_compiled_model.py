"""Properties, subgraphs, exports and requests of a compiled model on two CPU devices."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest

import hetero
from hetero.devices.errors import (
    ArgumentTypeError,
    PropertyError,
    TensorNameError,
    UnknownPropertyError,
)
from tests.support.core_fixtures import core_fixture
from tests.support.models import branches, branches_output
from tests.support.stateful_models import running_sum

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
DEVICES = "HETERO:CPU.0,CPU.1,CPU.2"
PINS = {"matmul": "CPU.1", "relu": "CPU.1", "add": "CPU.0", "op:Tanh": "CPU.0", "op:Neg": "CPU.0"}


core = core_fixture("module", devices={"CPU": 3})


@pytest.fixture(scope="module")
def compiled(core):
    options = {
        "DEVICE_PROPERTIES": {
            "CPU.0": {"NUM_STREAMS": 2, "INFERENCE_NUM_THREADS": 1},
            "CPU.1": {"NUM_STREAMS": 2, "INFERENCE_NUM_THREADS": 2},
            "CPU.2": {"NUM_STREAMS": 7, "INFERENCE_NUM_THREADS": 1},
        },
        "REQUEST_TIMEOUT_S": 55.5,
    }
    with core.compile_model(branches(), DEVICES, options, affinity=PINS) as compiled:
        yield compiled


def test_subgraphs_and_plan(compiled):
    assert [(s.index, s.device, len(s.node_names)) for s in compiled.subgraphs] == [
        (0, "CPU.1", 2),
        (1, "CPU.0", 4),
    ]
    assert [s.inputs for s in compiled.subgraphs] == [("x",), ("positive",)]
    assert compiled.affinity["relu"] == "CPU.1"
    assert compiled.partition is compiled.placements[0].partition
    assert compiled.plan is compiled.placements[0].plan or compiled.plan.name == "branches"
    assert (compiled.shares, compiled.stage_numbers) == ((1.0,), ((0, 1),))
    assert compiled.plan_report is None
    with pytest.warns(DeprecationWarning, match="CompiledModel.placements"):
        assert compiled.cuts == compiled.placements


def test_texts(compiled):
    assert repr(compiled) == "<CompiledModel 'branches': 2 subgraphs on CPU.1, CPU.0>"
    html = compiled._repr_html_()
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in html.split("<tr>")[1:]]
    assert rows == [
        ["subgraph", "device", "nodes", "inputs", "outputs"],
        ["0", "CPU.1", "2", "x", "positive"],
        ["1", "CPU.0", "4", "positive", "y"],
    ]
    assert "Compiled model branches" in html


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NETWORK_NAME", "branches"),
        ("EXECUTION_DEVICES", ["CPU.1", "CPU.0"]),
        ("MULTI_DEVICE_PRIORITIES", ["CPU.0", "CPU.1", "CPU.2"]),
        ("LOADED_FROM_CACHE", False),
        ("PERF_COUNT", False),
        ("HETERO_NUMBER_OF_SUBMODELS", 2),
        ("REQUEST_TIMEOUT_S", 55.5),
        ("OPTIMAL_NUMBER_OF_INFER_REQUESTS", 2 * 2 + 1),  # two stages, two streams, and one more
        ("NUM_STREAMS", 2),  # CPU.2 runs nothing
        ("FULL_DEVICE_NAME", "HETERO"),
    ],
)
def test_property(name, value, compiled):
    assert compiled.get_property(name) == value


def test_properties_of_the_devices(compiled):
    options = compiled.get_property("DEVICE_PROPERTIES")
    assert {d: o["NUM_STREAMS"] for d, o in options.items()} == {"CPU.0": 2, "CPU.1": 2, "CPU.2": 7}
    with pytest.raises(PropertyError, match=r"INFERENCE_NUM_THREADS: CPU\.0 has 1, CPU\.1 has 2\."):
        compiled.get_property("INFERENCE_NUM_THREADS")
    with pytest.raises(UnknownPropertyError, match="on model 'branches'") as caught:
        compiled.get_property("NUM_STREAM")
    assert caught.value.property == "NUM_STREAM"
    assert "NUM_STREAMS" in str(caught.value)
    supported = compiled.get_property("SUPPORTED_PROPERTIES")
    assert set(supported.values()) == {"RO"}
    assert "REQUEST_TIMEOUT_S" in supported


def test_profiling_on_one_device_profiles_the_requests(core):
    options = {"DEVICE_PROPERTIES": {"CPU.1": {"PERF_COUNT": True}}}
    with core.compile_model(branches(), DEVICES, options, affinity=PINS) as compiled:
        assert compiled.get_property("PERF_COUNT") is True
        request = compiled.create_infer_request()
        request.infer(X)
        names = [row.node_name for row in request.profiling_info if row.node_name[:8] == "subgraph"]
        assert [name.split(":")[0] for name in names] == ["subgraph0"] * 2 + ["subgraph1"] * 4


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 3),
        ({"PERFORMANCE_HINT_NUM_REQUESTS": 2}, 2),
        ({"PERFORMANCE_HINT_NUM_REQUESTS": 9}, 3),
        ({"AUTO_BATCH_SIZE": 4}, 12),
        ({"AUTO_BATCH_SIZE": 4, "ALLOW_AUTO_BATCHING": False}, 3),
        ({"AUTO_BATCH_SIZE": 4, "PERFORMANCE_HINT_NUM_REQUESTS": 5}, 5),
    ],
)
def test_optimal_number_of_requests(options, expected, core):
    with core.compile_model(branches(), DEVICES, options, affinity=PINS) as compiled:
        assert compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == expected


def test_run_returns_the_named_outputs(compiled):
    expected = branches_output(X)
    for names in (None, ["y"], ["y", "y"]):
        results = compiled.run(names, {"x": X}, timeout_s=50)
        assert len(results) == len(names or [1])
        np.testing.assert_allclose(results[-1], expected, rtol=1e-5)
    assert compiled.run([], {"x": X}) == []
    with pytest.raises(TensorNameError):
        compiled.run(["z"], {"x": X})


def test_submission_takes_its_priority_and_timeout(compiled):
    submission = compiled.submit({"x": X}, timeout_s=50, priority=3)
    np.testing.assert_allclose(
        submission.future.result(50).outputs["y"], branches_output(X), rtol=1e-5
    )
    with pytest.raises(hetero.ArgumentTypeError, match="priority"):
        compiled.submit({"x": X}, priority="3")  # type: ignore[arg-type]


def test_exports_are_equal(compiled, core, tmp_path):
    data, stream, path = compiled.export_model(), io.BytesIO(), tmp_path / "m.blob"
    compiled.export_model(stream)
    compiled.export_model(path)
    compiled.export_model(str(tmp_path / "n.blob"))
    assert stream.getvalue() == path.read_bytes() == (tmp_path / "n.blob").read_bytes() == data
    assert len(compiled.export_model(weightless=True)) < len(data)
    with core.import_model(data) as imported:
        assert [(s.index, s.device) for s in imported.subgraphs] == [(0, "CPU.1"), (1, "CPU.0")]
        np.testing.assert_allclose(imported(X)[0], branches_output(X), rtol=1e-5)
    for bad in (3, b"bytes", ["path"]):
        with pytest.raises(ArgumentTypeError, match=f"got {type(bad).__name__}"):
            compiled.export_model(bad)  # type: ignore[call-overload]


def test_closed_model_refuses_requests(core):
    compiled = core.compile_model(branches(), DEVICES, affinity=PINS)
    request = compiled.create_infer_request()
    request.infer(X)
    compiled.close()
    compiled.close()
    with pytest.raises(hetero.HeteroError):
        request.infer(X)


def test_options_of_another_model_stay(core, compiled):
    with core.compile_model(branches(), "HETERO:CPU.0", {"REQUEST_TIMEOUT_S": 3.0}) as other:
        assert repr(other) == "<CompiledModel 'branches': 1 subgraph on CPU.0>"
        assert other.get_property("REQUEST_TIMEOUT_S") == 3.0
        assert other.get_property("NUM_STREAMS") == 1
    assert compiled.get_property("REQUEST_TIMEOUT_S") == 55.5


def test_ports_exclude_states(core):
    model = core.read_model(running_sum(), states={"before": "after"})
    with core.compile_model(model, "CPU") as compiled:
        names = [[port.name for port in ports] for ports in (compiled.inputs, compiled.outputs)]
    assert names == [["x"], ["y"]]


def test_imported_model_tells_why_it_is_not_verified(core):
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity={"relu": "CPU"}) as compiled:
        blob = compiled.export_model()
        assert compiled.verification.verdicts == ()
    with core.import_model(blob, config={"VERIFY": "YES"}) as imported:
        verdicts = imported.verification.verdicts
    assert {(verdict.device, verdict.status) for verdict in verdicts} == {("ORT", "not verified")}
    assert {verdict.reason for verdict in verdicts} == {
        "it was imported; compile the model again to verify it"
    }
