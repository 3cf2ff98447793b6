"""The commands `profile`, `plan` and `bench` with measured costs."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import onnx
import pytest
from onnx.parser import parse_model

from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.null.plugin import NullPlugin
from hetero.devices.plugin.program import Program
from hetero.planning.cost.cost_file import read_costs, write_costs
from hetero.planning.cost.costs import CLIENT
from hetero.planning.cost.profile_request import identify_device
from hetero.planning.solver import search
from tests.support.costs import costs
from tests.support.graphs import build

LINES = "\n".join(f"n{i}: v{i + 1} = Neg(v{i})" for i in range(8))
#: A model whose batch size is open.
OPEN_SIZES = """<ir_version: 9, opset_import: ["": 18]>
    open (float[N, 4] x) => (float[N, 4] y) { y = Neg (x) }"""
DEVICES = (
    "--devices",
    "NULL=2",
    "-d",
    "HETERO:NULL.0,NULL.1",
    "-c",
    "NULL_NODE_TIME_US=500",
)


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "chain.onnx"
    build(LINES, inputs="v0", outputs="v8").save(path)
    return path


#: Pins force a cut, which otherwise depends on the load of the machine.
PINS = ("-a", "n0=NULL.0", "-a", "n7=NULL.1")


@pytest.mark.slow
def test_profile_plan_and_bench_share_a_cost_file(shell, model, tmp_path):
    path = tmp_path / "costs.json"
    document = shell("profile -t 0.4 --json", model, *DEVICES, "-o", path).document
    assert document["file"] == str(path)
    assert set(document["devices"]) == {"NULL.0", "NULL.1"}
    before = read_costs(path)
    assert {(CLIENT, "NULL.0"), ("NULL.0", CLIENT)} < set(before.transfers)

    options = (*DEVICES, *PINS, "--costs", path, "--plan-seconds", "0.3")
    plan = shell("plan --json", model, *options).document
    assert plan["plan"] is not None
    assert plan["request"]["policy"] == "AUTO"
    used = {node["device"] for node in plan["nodes"]}
    assert used == {"NULL.0", "NULL.1"}

    bench = shell("bench --hint THROUGHPUT -n 20 --json", model, *options).document
    prediction = bench["prediction"]
    assert prediction["period"]["measured_s"] > 0
    assert prediction["latency"]["measured_s"] > 0
    assert not prediction["cut_short"]
    assert len(prediction["stages"]) == len(bench["subgraphs"]) == 2
    assert all(row["ratio"] is not None for row in (*prediction["stages"], *prediction["wires"]))


def test_bench_without_a_plan_has_no_prediction(shell, model):
    assert shell("bench -n 5 --json", model, *DEVICES).document["prediction"] is None


@pytest.mark.slow
def test_tables_show_plan_and_prediction(shell, model, tmp_path):
    path = tmp_path / "costs.json"
    text = shell("profile -t 0.3", model, *DEVICES, "-o", path).out
    assert "NULL.0" in text
    assert f"wrote {path}" in text.replace("\n", "")
    options = (*DEVICES, "--costs", path, "--plan-seconds", "0.2")
    text = " ".join(shell("plan", model, *options).out.split())
    assert "proven lower bound" in text
    assert "costs in process at 20" in text
    text = shell("bench --policy AUTO -n 6", model, *options).out
    assert "time per request at full load" in text
    assert "predicted by costs in process at 20" in " ".join(text.split())


@pytest.mark.slow
def test_search_ended_by_its_time_limit_is_reported(shell, model, tmp_path, core, monkeypatch):
    path = tmp_path / "costs.json"
    monkeypatch.setattr(search, "DEADLINE_FRACTIONS", (0.0, 0.0))
    source = read_model(model)
    model_costs = costs(
        source, {d: dict.fromkeys(source.node_names, 1e-3) for d in ("CPU", "NULL")}
    )
    identities = {d.name: identify_device(d, {}) for d in core.device_descriptors}
    devices = {n: replace(d, identity=identities[n]) for n, d in model_costs.devices.items()}
    write_costs(replace(model_costs, devices=devices), path)
    options = (model, "-d", "HETERO:CPU,NULL", "--costs", path)
    assert shell("plan --json", *options).document["plan"]["cut_short"] is True
    for command in ("plan", "bench --hint THROUGHPUT -n 2"):
        assert "the time limit ended" in " ".join(shell(command, *options).out.split())


def test_cost_file_of_other_devices_is_refused(shell, model, tmp_path):
    path = tmp_path / "costs.json"
    shell("profile -t 0.3", model, *DEVICES, "-o", path)
    other_config = [part.replace("500", "100") for part in DEVICES]
    result = shell("plan", model, *other_config, "--costs", path)
    assert "hetero: PlanError: " in result.err
    assert "NULL_NODE_TIME_US 100.0, measured with 500.0" in " ".join(result.err.split())


def test_profile_refuses_pins(shell, model):
    assert shell("profile", model, *DEVICES, "-a", "n0=NULL.1").code == 2


class Interrupting(NullPlugin):
    """Raises KeyboardInterrupt when it compiles the second program."""

    name = "INTERRUPTING"
    compiled = 0

    def compile(self, model: Model, config: Any) -> Program:
        type(self).compiled += 1
        if type(self).compiled == 2:
            raise KeyboardInterrupt  # as Ctrl-C in the main thread
        return super().compile(model, config)


def test_ctrl_c_writes_the_measured_costs(shell, model, tmp_path):
    path = tmp_path / "costs.json"
    Interrupting.compiled = 0
    plugin = ("--plugin", f"{__name__}:Interrupting", "-d", "HETERO:INTERRUPTING,NULL")
    result = shell("profile -t 60", model, *plugin, "-o", path)
    assert result.code == 130, result.err
    assert "interrupted" in result.out
    costs = read_costs(path)
    assert costs.interrupted
    assert {t.source for t in costs.devices["INTERRUPTING"].nodes.values()} == {"measured"}


def test_plan_that_fits_lists_the_memory_of_each_device(shell, model):
    options = ("--devices", "CPU=2", "-d", "HETERO:CPU.0,CPU.1")
    plan = shell("plan --json --fit --memory CPU.0=1GB,CPU.1=2GB", model, *options).document
    (row,) = plan["memory"]
    assert row["device"] == "CPU.0"
    assert row["budget_nbytes"] == 1_000_000_000
    assert row["peak_nbytes"] + row["free_nbytes"] == row["budget_nbytes"]
    assert "predicted peak" in shell("plan --fit --memory CPU.0=1GB", model, *options).out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--fit --memory CPU.0=2GBB", "got 'CPU.0=2GBB', expected DEVICE=SIZE"),
        ("--fit --memory CPU.0=1,5GB", "got 'CPU.0=1' in 'CPU.0=1,5GB', expected DEVICE=SIZE"),
        ("--fit --memory CPU.0=1,5GB", "commas separate the pairs, so write 1.5 with a point"),
        ("--fit --memory CPU.7=2GB", "expected one of the model's devices CPU.0, CPU.1"),
        ("--memory CPU.0=2GB", "add --fit"),
        ("--fit --memory CPU.0=175", "'CPU.0=175', expected DEVICE=SIZE with a unit"),
        ("--fit --memory CPU.0=1kB,CPU.1=1kB", "the smallest change that suffices"),
        ("--fit --memory CPU.0=1kB,CPU.1=1kB", "Without a model, CPU.0 takes 132 MB"),
    ],
)
def test_invalid_memory_is_reported(shell, model, options, message):
    devices = ("--devices", "CPU=2", "-d", "HETERO:CPU.0,CPU.1")
    for command in ("plan", "compile"):
        result = shell(f"{command} {options}", model, *devices)
        assert result.code != 0
        assert message in result.err


@pytest.mark.parametrize(
    ("memory", "reason"),
    [
        ("CPU.0=1MB,CPU.1=1GB", "its memory is too small for any of the 8 nodes"),
        ("CPU.0=1GB,CPU.1=1GB", "the model fits the memory of the devices before it"),
    ],
)
def test_memory_is_the_reason_of_an_unused_device(shell, model, memory, reason):
    devices = ("--devices", "CPU=2", "-d", "HETERO:CPU.0,CPU.1", "--plan-seconds", "0.1")
    report = shell(f"plan --json --fit --memory {memory}", model, *devices).document
    (lint,) = [lint for lint in report["lints"] if lint["code"] == "unused-device"]
    assert reason in lint["message"]
    fits = {row["name"]: row["fits"] for row in report["counterfactuals"]}
    assert fits["single CPU.0"] == ("CPU.0=1GB" in memory)
    assert fits["single CPU.1"]


def test_copies_are_no_lack_of_memory(shell, model):
    devices = ("--devices", "CPU=2", "-d", "HETERO:CPU.0,CPU.1", "--plan-seconds", "0.1")
    options = "--fit --memory CPU.0=1GB,CPU.1=1GB --hint THROUGHPUT"
    output = shell(f"plan {options}", model, *devices).out
    assert re.search(r"replicas +CPU.0, CPU.1 +2 copies; --fit has 1 ", output)
    assert "does not fit" not in output


def test_plan_that_fits_needs_the_memory_of_each_device(shell, model, monkeypatch):
    monkeypatch.setattr("hetero.scheduler.device.discovery._node_memory_nbytes", lambda: None)
    result = shell("plan --fit -d CPU", model)
    assert result.code != 0
    assert "that of CPU is unknown; set it with --memory CPU=2GB" in result.err


def test_plan_that_fits_needs_all_sizes(shell, tmp_path):
    path = tmp_path / "open.onnx"
    onnx.save(parse_model(OPEN_SIZES), path)
    result = shell("plan --fit --memory CPU=1GB -d CPU", path)
    assert result.code != 0
    assert "--shape x=1,4" in result.err
    result = shell("plan --json --fit --memory CPU=1GB -d CPU --shape x=8,4", path)
    factor = CPUPlugin.memory_traits.values_factor
    assert result.document["memory"][0]["values_nbytes"] == factor * 2 * 8 * 4 * 4
