"""Cost planning with three backends: OpenVINO, ONNX Runtime and the numpy kernels."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

import hetero
from hetero.cli.main import cli
from hetero.devices.errors import DeviceError, PlanError, TensorNameError, TensorShapeError
from hetero.planning.cost.cost_file import write_costs
from hetero.report import build_report
from tests.support.models import branches, branches_output

pytest.importorskip("openvino")

LIST = "HETERO:OV,ORT,CPU"
QUICK = {"PROFILE_SECONDS": 0.1, "PLAN_SECONDS": 0.3}
POLICIES = ("PRIORITY", "PIPELINE_PARALLEL", "AUTO")
HINTS = ("THROUGHPUT", "LATENCY")
#: A node for each backend, so that every plan uses all three.
PINS = {"matmul": "OV", "tanh": "ORT", "abs": "CPU"}
#: Properties of OpenVINO's device with the names of HETERO's planning properties.
PLANNING = ("MODEL_DISTRIBUTION_POLICY", "PERFORMANCE_HINT", "PERFORMANCE_HINT_NUM_REQUESTS")
X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(4, 3)


@pytest.fixture(scope="module")
def costs(core):
    return core.profile_model(branches(), LIST, inputs={"x": X}, seconds=0.5)


@pytest.fixture
def files(tmp_path, costs):
    """Return the paths of the model and of its cost file."""
    model, file = tmp_path / "branches.onnx", tmp_path / "branches.costs.json"
    onnx.save(branches(), model)
    write_costs(costs, file)
    return str(model), str(file)


@pytest.fixture(scope="module")
def planning_of_openvino(core):
    """Return the device's default properties."""
    with core.compile_model(branches(), LIST) as compiled:
        return planning_of(compiled)


def planning_of(compiled: hetero.CompiledModel) -> dict[str, Any]:
    properties = compiled.get_property("DEVICE_PROPERTIES")["OV.CPU"]
    return {name: properties[name] for name in PLANNING}


def hetero_command(*arguments: str) -> Result:
    config = [f"-c{name}={value}" for name, value in QUICK.items()]
    device_options = ("-d", LIST, "--executor", "inprocess")
    return CliRunner().invoke(cli, [*arguments, *device_options, *config])


def test_profile_measures_every_device(costs):
    assert not costs.missing
    assert set(costs.devices) == {"OV.CPU", "ORT", "CPU"}
    for device in costs.devices.values():
        assert set(device.nodes) == {"matmul", "relu", "tanh", "neg", "abs", "add"}
        assert "measured" in {time.source for time in device.nodes.values()}


@pytest.mark.sampled(20, "policy", "hint")
@pytest.mark.parametrize("policy", [*POLICIES, ""])
@pytest.mark.parametrize("hint", [*HINTS, ""])
def test_policies_and_hints_plan_and_run(core, planning_of_openvino, policy, hint):
    config = {"MODEL_DISTRIBUTION_POLICY": policy, "PERFORMANCE_HINT": hint, **QUICK}
    report = core.plan_model(branches(), LIST, config, affinity=PINS)
    assert set(report.loads_s) == {"OV.CPU", "ORT", "CPU"}
    assert report.policy == (policy or "AUTO")
    with core.compile_model(branches(), LIST, config, affinity=PINS) as compiled:
        assert {s.device for s in compiled.subgraphs} == {"OV.CPU", "ORT", "CPU"}
        np.testing.assert_allclose(compiled(X)["y"], branches_output(X), rtol=1e-5)
        assert planning_of(compiled) == planning_of_openvino


@pytest.mark.parametrize("hint", HINTS)
def test_cost_file_works_with_every_policy(core, files, hint):
    model, file = files
    for policy in ("PIPELINE_PARALLEL", "AUTO", ""):
        config = {
            "MODEL_DISTRIBUTION_POLICY": policy,
            "PERFORMANCE_HINT": hint,
            "COST_FILE": file,
            "PERFORMANCE_HINT_NUM_REQUESTS": 2,
            "PLAN_SECONDS": 0.3,
        }
        with core.compile_model(model, LIST, config, affinity=PINS) as compiled:
            assert compiled.plan_report is not None
            assert dict(compiled.plan_report.shapes) == {"x": (4, 3)}
            np.testing.assert_allclose(compiled(X)["y"], branches_output(X), rtol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "--policy", "AUTO"),
        ("plan", "--policy", "PIPELINE_PARALLEL", "--costs", "FILE"),
        ("plan", "--policy", "PRIORITY", "--costs", "FILE"),
        ("plan", "--hint", "LATENCY", "--shape", "x=5,3"),
        ("compile", "--policy", "AUTO", "--shape", "x=5,3"),
        ("compile", "--policy", "PIPELINE_PARALLEL"),
        ("compile", "--policy", "PRIORITY", "--shape", "x=5,3"),
        ("compile", "--hint", "THROUGHPUT", "--costs", "FILE"),
        ("run", "--policy", "PRIORITY"),
        ("run", "--policy", "AUTO", "--shape", "x=5,3"),
        ("run", "--hint", "LATENCY", "--costs", "FILE"),
        ("run", "--profile", "--costs", "FILE"),
        ("bench", "-n", "4", "--policy", "PIPELINE_PARALLEL", "--costs", "FILE"),
        ("bench", "-n", "4", "--hint", "THROUGHPUT", "--shape", "x=5,3"),
        ("query", "--shape", "x=5,3"),
    ],
    ids=" ".join,
)
def test_commands_with_planning_options(files, arguments):
    model, file = files
    command, *options = (file if argument == "FILE" else argument for argument in arguments)
    result = hetero_command(command, model, *options, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    if command in ("plan", "query"):
        assert len(document["nodes"]) == 6
        expected = {"x": [5, 3]} if "--shape" in options else {"x": [4, 3]}
        assert (
            command == "query"
            or arguments[2] == "AUTO"
            or document["request"]["shapes"] == expected
        )
    else:
        nodes = Counter(name for s in document["subgraphs"] for name in s["nodes"])
        assert len(nodes) == 6
        assert len(set(nodes.values())) == 1  # each replica has every node


def test_report_contains_planned_shapes(core):
    model = core.read_model(branches())
    for shapes in ({}, {"x": [64, 3]}):
        config = {**QUICK, **({"PLAN_SHAPES": shapes} if shapes else {})}
        report = core.plan_model(model, LIST, config, affinity=PINS)
        survey = core.survey_model(model, LIST, config, affinity=PINS)
        document = build_report(survey, report)
        shape = shapes.get("x", [1, 3])
        assert document["request"]["shapes"] == {"x": shape}
        assert f" | at x {shape} | " in document["verdict"]["sentence"]
        lints = [lint for lint in document["lints"] if lint["code"] == "planned-shapes"]
        message = f"planned for the measured shapes x {shape}"
        assert [message in lint["message"] for lint in lints] == [True] * (not shapes)
        # The partition may depend on the shape; each wire is a number of float32 rows.
        assert document["wires"]
        assert all(wire["nbytes"] % (4 * shape[0]) == 0 for wire in document["wires"])
        assert not any(wire["open_dims"] for wire in document["wires"])


def test_build_report_of_plan_does_not_partition(core, monkeypatch):
    """The row of the priority list is that of the plan, including pins."""
    config = {"MODEL_DISTRIBUTION_POLICY": "PRIORITY", **QUICK}
    report = core.plan_model(branches(), LIST, config, affinity=PINS)
    survey = core.survey_model(branches(), LIST, config, affinity=PINS)
    monkeypatch.delattr("hetero.report.document.partition")
    monkeypatch.delattr("hetero.report.alternatives.partition")
    document = build_report(survey, report)
    rows = {row["name"]: row for row in document["counterfactuals"]}
    assert rows["priority"]["chosen"]
    assert rows["priority"]["subgraphs"] == len(document["subgraphs"])
    assert rows["priority"]["cuts"] == len(document["wires"]) > 0
    assert rows["priority"]["nbytes"] == sum(wire["nbytes"] for wire in document["wires"])


def test_survey_with_plan_shapes_reports_sizes(core):
    survey = core.survey_model(branches(), LIST, {"PLAN_SHAPES": {"x": [7, 3]}}, affinity=PINS)
    document = build_report(survey)
    (row,) = [p for n in document["nodes"] if n["name"] == "relu" for p in n["outputs"]]
    assert row["shape"] == [7, 4]
    assert document["model"]["inputs"][0]["shape"] == ["N", 3]


@pytest.mark.parametrize(
    ("shapes", "error"),
    [
        ({"x": [2, 4]}, TensorShapeError),
        ({"z": [2, 3]}, TensorNameError),
        ({"x": "2,3"}, hetero.PropertyError),
    ],
    ids=str,
)
def test_plan_shapes_mismatch_raises(core, shapes, error):
    with pytest.raises(error):
        core.plan_model(branches(), LIST, {**QUICK, "PLAN_SHAPES": shapes})


def test_single_device_receives_the_hint(core):
    for device in ("OV", "HETERO:OV"):
        with core.compile_model(branches(), device, {"PERFORMANCE_HINT": "THROUGHPUT"}) as compiled:
            assert planning_of(compiled)["PERFORMANCE_HINT"] == "THROUGHPUT"
    config = {
        "PERFORMANCE_HINT": "THROUGHPUT",
        "DEVICE_PROPERTIES": {"OV": {"NUM_STREAMS": 2}},
        **QUICK,
    }
    with core.compile_model(branches(), LIST, config, affinity=PINS) as compiled:
        assert planning_of(compiled)["PERFORMANCE_HINT"] != "THROUGHPUT"
        assert compiled.get_property("DEVICE_PROPERTIES")["OV.CPU"]["NUM_STREAMS"] == 2


def test_cost_file_mismatch_message(core, files):
    model, file = files
    config = {
        "COST_FILE": file,
        "PLAN_SHAPES": {"x": [64, 3]},
        "PERFORMANCE_HINT": "LATENCY",
        "DEVICE_PROPERTIES": {"OV": {"NUM_STREAMS": 2}},
    }
    with pytest.raises(PlanError) as error:
        core.plan_model(model, LIST, config)
    text = str(error.value)
    assert "input 'x': expected shape [64, 3], measured [4, 3]" in text
    assert "device OV.CPU: expected NUM_STREAMS 2, measured with default" in text
    assert "(" not in text.partition("does not match:")[2]


def test_report_lists_unmeasured_device(core, costs):
    devices = {name: device for name, device in costs.devices.items() if name != "OV.CPU"}
    partial_costs = replace(costs, devices=devices, missing={"OV.CPU": "device lost"})
    report = core.plan_model(branches(), LIST, QUICK, costs=partial_costs)
    document = build_report(core.survey_model(branches(), LIST, QUICK), report)
    (message,) = [r["message"] for r in document["lints"] if r["devices"] == ["OV.CPU"]]
    assert "it could not be measured (device lost)" in message


def test_device_properties_reach_openvino(core):
    """OpenVINO's CPU has a property with the name of HETERO's policy, whose values are sets."""
    config = {"DEVICE_PROPERTIES": {"OV": {"MODEL_DISTRIBUTION_POLICY": "TENSOR_PARALLEL"}}}
    with core.compile_model(branches(), "HETERO:OV,CPU", config) as compiled:
        properties = compiled.get_property("DEVICE_PROPERTIES")["OV.CPU"]
        assert properties["MODEL_DISTRIBUTION_POLICY"] == ("TENSOR_PARALLEL",)
        assert compiled.get_property("MODEL_DISTRIBUTION_POLICY") != ("TENSOR_PARALLEL",)
    config["DEVICE_PROPERTIES"]["OV"]["MODEL_DISTRIBUTION_POLICY"] = "NONSENSE"
    with pytest.raises(DeviceError, match="Wrong value NONSENSE"):
        core.compile_model(branches(), "HETERO:OV,CPU", config)
