"""Plans by cost over three vendors: OpenVINO's CPU device, ONNX Runtime and the numpy kernels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

import hetero
from hetero.cli import cli
from hetero.devices.errors import DeviceError, PlanError, TensorNameError, TensorShapeError
from hetero.planning.cost.cost_file import write_costs
from hetero.planning.cost.costs import Costs
from hetero.report import build_report
from tests.support.models import branches, branches_output

pytest.importorskip("openvino")

LIST = "HETERO:OV,ORT,CPU"
QUICK = {"PROFILE_SECONDS": 0.1, "PLAN_SECONDS": 0.3}
POLICIES = ("PRIORITY", "PIPELINE_PARALLEL", "AUTO")
HINTS = ("THROUGHPUT", "LATENCY")
#: A node for each vendor: a plan has all three, whatever they cost.
PINS = {"matmul": "OV", "tanh": "ORT", "abs": "CPU"}
#: What OpenVINO's device has by the names that HETERO plans with.
PLANNING = ("MODEL_DISTRIBUTION_POLICY", "PERFORMANCE_HINT", "PERFORMANCE_HINT_NUM_REQUESTS")
X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(4, 3)


@pytest.fixture(scope="module")
def costs(core: hetero.Core) -> Costs:
    return core.profile_model(branches(), LIST, inputs={"x": X}, seconds=0.5)


@pytest.fixture
def files(tmp_path: Path, costs: Costs) -> tuple[str, str]:
    """Return the paths of the model and of its cost file."""
    model, file = tmp_path / "branches.onnx", tmp_path / "branches.costs.json"
    onnx.save(branches(), model)
    write_costs(costs, file)
    return str(model), str(file)


@pytest.fixture(scope="module")
def planning_of_openvino(core: hetero.Core) -> dict[str, Any]:
    """Return what the device has where nothing is given."""
    with core.compile_model(branches(), LIST) as compiled:
        return planning_of(compiled)


def planning_of(compiled: hetero.CompiledModel) -> dict[str, Any]:
    given = compiled.get_property("DEVICE_PROPERTIES")["OV.CPU"]
    return {name: given[name] for name in PLANNING}


def hetero_command(*arguments: str) -> Result:
    config = [f"-c{name}={value}" for name, value in QUICK.items()]
    where = ("-d", LIST, "--executor", "inprocess")
    return CliRunner().invoke(cli, [*arguments, *where, *config])


def test_every_device_is_measured(costs: Costs) -> None:
    assert not costs.missing
    assert set(costs.devices) == {"OV.CPU", "ORT", "CPU"}
    for device in costs.devices.values():
        assert set(device.nodes) == {"matmul", "relu", "tanh", "neg", "abs", "add"}
        assert "measured" in {time.source for time in device.nodes.values()}


@pytest.mark.parametrize("policy", [*POLICIES, ""])
@pytest.mark.parametrize("hint", [*HINTS, ""])
def test_every_policy_and_hint_plans_and_runs(
    core: hetero.Core, planning_of_openvino: dict[str, Any], policy: str, hint: str
) -> None:
    config = {"MODEL_DISTRIBUTION_POLICY": policy, "PERFORMANCE_HINT": hint, **QUICK}
    report = core.plan_model(branches(), LIST, config, affinity=PINS)
    assert set(report.loads_s) == {"OV.CPU", "ORT", "CPU"}
    assert report.policy == (policy or "AUTO")
    with core.compile_model(branches(), LIST, config, affinity=PINS) as compiled:
        assert {s.device for s in compiled.subgraphs} == {"OV.CPU", "ORT", "CPU"}
        np.testing.assert_allclose(compiled(X)["y"], branches_output(X), rtol=1e-5)
        assert planning_of(compiled) == planning_of_openvino


@pytest.mark.parametrize("hint", HINTS)
def test_a_cost_file_holds_whatever_is_planned(
    core: hetero.Core, files: tuple[str, str], hint: str
) -> None:
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
def test_commands(files: tuple[str, str], arguments: tuple[str, ...]) -> None:
    model, file = files
    command, *options = (file if argument == "FILE" else argument for argument in arguments)
    done = hetero_command(command, model, *options, "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    if command in ("plan", "query"):
        assert len(document["nodes"]) == 6
        wanted = {"x": [5, 3]} if "--shape" in options else {"x": [4, 3]}
        assert (
            command == "query" or arguments[2] == "AUTO" or document["request"]["shapes"] == wanted
        )
    else:
        assert sum(len(s["nodes"]) for s in document["subgraphs"]) == 6


def test_a_plan_says_at_which_shapes(core: hetero.Core) -> None:
    model = core.read_model(branches())
    for given in ({}, {"x": [64, 3]}):
        config = {**QUICK, **({"PLAN_SHAPES": given} if given else {})}
        report = core.plan_model(model, LIST, config, affinity=PINS)
        survey = core.survey_model(model, LIST, config, affinity=PINS)
        document = build_report(survey, report)
        shape = given.get("x", [1, 3])
        assert document["request"]["shapes"] == {"x": shape}
        assert f" | at x {shape} | " in document["verdict"]["sentence"]
        lints = [lint for lint in document["lints"] if lint["code"] == "planned-shapes"]
        message = f"planned for the measured shapes x {shape}"
        assert [message in lint["message"] for lint in lints] == [True] * (not given)
        # It may be cut elsewhere at each shape: these are float32 rows, of one length or another.
        assert document["wires"]
        assert all(wire["nbytes"] % (4 * shape[0]) == 0 for wire in document["wires"])
        assert not any(wire["open_dims"] for wire in document["wires"])


def test_a_report_of_a_plan_cuts_nothing_again(
    core: hetero.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The priority list's row is that of the plan, pins and all."""
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


def test_a_query_tells_sizes_at_shapes(core: hetero.Core) -> None:
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
def test_shapes_that_do_not_fit(core: hetero.Core, shapes: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        core.plan_model(branches(), LIST, {**QUICK, "PLAN_SHAPES": shapes})


def test_a_device_alone_has_its_hint(core: hetero.Core) -> None:
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


def test_a_file_that_does_not_fit_is_told_in_words(
    core: hetero.Core, files: tuple[str, str]
) -> None:
    model, file = files
    config = {
        "COST_FILE": file,
        "PLAN_SHAPES": {"x": [64, 3]},
        "PERFORMANCE_HINT": "LATENCY",
        "DEVICE_PROPERTIES": {"OV": {"NUM_STREAMS": 2}},
    }
    with pytest.raises(PlanError) as raised:
        core.plan_model(model, LIST, config)
    text = str(raised.value)
    assert "input 'x' was measured as [4, 3], wanted [64, 3]" in text
    assert "device OV.CPU: measured with NUM_STREAMS at its default, wanted 2" in text
    assert "(" not in text.partition("does not fit:")[2]


def test_a_device_that_cannot_be_measured_is_named(core: hetero.Core, costs: Costs) -> None:
    left = {name: device for name, device in costs.devices.items() if name != "OV.CPU"}
    some = replace(costs, devices=left, missing={"OV.CPU": "it went away"})
    report = core.plan_model(branches(), LIST, QUICK, costs=some)
    document = build_report(core.survey_model(branches(), LIST, QUICK), report)
    (told,) = [r["message"] for r in document["lints"] if r["devices"] == ["OV.CPU"]]
    assert "it could not be measured (it went away)" in told


def test_what_is_given_for_openvino_alone_reaches_it(core: hetero.Core) -> None:
    """Its CPU has a policy of the name that HETERO plans by, and values that are sets."""
    config = {"DEVICE_PROPERTIES": {"OV": {"MODEL_DISTRIBUTION_POLICY": "TENSOR_PARALLEL"}}}
    with core.compile_model(branches(), "HETERO:OV,CPU", config) as compiled:
        asked = compiled.get_property("DEVICE_PROPERTIES")["OV.CPU"]
        assert asked["MODEL_DISTRIBUTION_POLICY"] == ("TENSOR_PARALLEL",)
        assert compiled.get_property("MODEL_DISTRIBUTION_POLICY") != ("TENSOR_PARALLEL",)
    config["DEVICE_PROPERTIES"]["OV"]["MODEL_DISTRIBUTION_POLICY"] = "NONSENSE"
    with pytest.raises(DeviceError, match="Wrong value NONSENSE"):
        core.compile_model(branches(), "HETERO:OV,CPU", config)
