"""The commands `profile`, `plan` and `bench` on plans by cost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import hetero
from devices.errors import PlanError
from devices.model.model import Model
from devices.model.reader import read_model
from devices.null.plugin import NullPlugin
from devices.plugin.program import Program
from hetero.cli import cli
from hetero.planning.cost.cost_file import read_costs, write_costs
from hetero.planning.cost.costs import CLIENT
from hetero.planning.cost.kinds import identify
from hetero.planning.solver import search
from tests.support.costs import costs
from tests.support.graphs import build

LINES = "\n".join(f"n{i}: v{i + 1} = Neg(v{i})" for i in range(8))
DEVICES = (
    "--executor", "inprocess", "--devices", "NULL=2", "-d", "HETERO:NULL.0,NULL.1",
    "-c", "NULL_NODE_TIME_US=500",
)  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "chain.onnx"
    build(LINES, inputs="v0", outputs="v8").save(path)
    return str(path)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def as_json(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


#: However little a cut pays on a busy machine.
APART = ("-a", "n0=NULL.0", "-a", "n7=NULL.1")


def test_profile_plan_bench_and_learn(model: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    document = as_json(invoke("profile", model, *DEVICES, "-o", str(path), "-t", "0.4", "--json"))
    assert document["file"] == str(path)
    assert set(document["devices"]) == {"NULL.0", "NULL.1"}
    before = read_costs(path)
    assert {(CLIENT, "NULL.0"), ("NULL.0", CLIENT)} < set(before.transfers)

    planned = as_json(
        invoke(
            "plan", model, *DEVICES, *APART, "--costs", str(path), "--plan-seconds", "0.3",
            "--json",
        )
    )  # fmt: skip
    assert planned["plan"] is not None
    assert planned["request"]["policy"] == "AUTO"
    used = {node["device"] for node in planned["nodes"]}
    assert used == {"NULL.0", "NULL.1"}

    benched = as_json(
        invoke(
            "bench", model, *DEVICES, *APART, "--costs", str(path), "--hint", "THROUGHPUT",
            "-n", "20", "--plan-seconds", "0.3", "--json",
        )
    )  # fmt: skip
    found = benched["prediction"]
    assert found["period"]["measured_s"] > 0
    assert found["latency"]["measured_s"] > 0
    assert not found["cut_short"]
    assert len(found["stages"]) == len(benched["subgraphs"]) == 2
    assert all(row["ratio"] is not None for row in (*found["stages"], *found["wires"]))


def test_bench_without_a_plan_has_no_prediction(model: str) -> None:
    document = as_json(invoke("bench", model, *DEVICES, "-n", "5", "--json"))
    assert document["prediction"] is None


def test_tables_for_people(model: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    text = invoke("profile", model, *DEVICES, "-o", str(path), "-t", "0.3").output
    assert "NULL.0" in text
    assert f"wrote {path}" in text.replace("\n", "")
    options = (*DEVICES, "--costs", str(path), "--plan-seconds", "0.2")
    text = " ".join(invoke("plan", model, *options).output.split())
    assert "proven lower bound" in text
    assert "costs in process at 20" in text
    text = invoke("bench", model, *options, "--policy", "AUTO", "-n", "6").output
    assert "between answers" in text
    assert "predicted by costs in process at 20" in " ".join(text.split())


def test_a_search_that_the_clock_ended_is_told(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "costs.json"
    monkeypatch.setattr(search, "CLOCK", (0.0, 0.0))
    source = read_model(model)
    given = costs(source, {d: dict.fromkeys(source.node_names, 1e-3) for d in ("CPU", "NULL")})
    with hetero.Core(executor="inprocess") as core:
        of = {d.name: identify(d, {}) for d in core.device_descriptors}
    devices = {n: replace(d, identity=of[n]) for n, d in given.devices.items()}
    write_costs(replace(given, devices=devices), path)
    options = ("--executor", "inprocess", "-d", "HETERO:CPU,NULL", "--costs", str(path))
    assert as_json(invoke("plan", model, *options, "--json"))["plan"]["cut_short"] is True
    bench = ("bench", model, *options, "--hint", "THROUGHPUT", "-n", "2")
    for command in (("plan", model, *options), bench):
        assert "the clock ended" in " ".join(invoke(*command).output.split())


def test_costs_of_other_devices_are_refused(model: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    invoke("profile", model, *DEVICES, "-o", str(path), "-t", "0.3")
    other = [part.replace("500", "100") for part in DEVICES]
    result = invoke("plan", model, *other, "--costs", str(path))
    assert isinstance(result.exception, PlanError)
    assert "NULL_NODE_TIME_US 500.0, wanted 100.0" in str(result.exception)


def test_pins_are_no_part_of_a_profile(model: str) -> None:
    assert invoke("profile", model, *DEVICES, "-a", "n0=NULL.1").exit_code == 2


class Interrupting(NullPlugin):
    """Compiles its second program, and with it comes a Ctrl-C."""

    name = "INTERRUPTING"
    compiled = 0

    def compile(self, model: Model, config: Any) -> Program:
        type(self).compiled += 1
        if type(self).compiled == 2:
            raise KeyboardInterrupt  # what Ctrl-C raises here, in the main thread
        return super().compile(model, config)


def test_ctrl_c_keeps_what_was_measured(model: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    Interrupting.compiled = 0
    command = ["profile", model, "--executor", "inprocess", "-d", "HETERO:INTERRUPTING,NULL"]
    plugin = ["--plugin", f"{__name__}:Interrupting"]
    result = invoke(*command, *plugin, "-o", str(path), "-t", "60")
    assert result.exit_code == 130, result.output
    assert "interrupted" in result.output
    costs = read_costs(path)
    assert costs.interrupted
    assert {t.source for t in costs.devices["INTERRUPTING"].nodes.values()} == {"measured"}
