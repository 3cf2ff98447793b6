"""Cost files: round trip, damaged files, and checks against a model and devices."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hetero.devices.errors import PlanError
from hetero.planning.cost.cost_file import check_costs, read_costs, to_document, write_costs
from hetero.planning.cost.costs import Costs, LinearCost, Time
from hetero.scheduler.types.device_descriptor import THIS_PROCESS
from tests.support.costs import costs, identity
from tests.support.graphs import build

MODEL = build("a: p = Relu(x)\nb: q = Neg(p)\nc: y = Abs(q)", outputs="y")


def sample() -> Costs:
    times = {d: {"a": 1e-3, "b": 2e-3, "c": 3e-3} for d in ("ORT", "CPU")}
    return replace(
        costs(MODEL, times, wire=LinearCost(1e-4, 2e-10, "calibrated"), fused=(("a", "b"),)),
        shapes={"x": (3,)},
        missing={"GPU": "lost"},
        measured_at="2026-11-22T10:00:00+00:00",
    )


def test_cost_file_round_trip(tmp_path):
    path = tmp_path / "costs.json"
    write_costs(sample(), path)
    assert read_costs(path) == sample()
    assert [p.name for p in tmp_path.iterdir()] == ["costs.json"]


def _set(document: Any, keys: tuple[Any, ...], value: Any) -> None:
    for key in keys[:-1]:
        document = document[key]
    document[keys[-1]] = value


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (("format",), "other", "not a cost file"),
        (("version",), 99, "got 99"),
        (
            ("devices", "ORT", "nodes", "a", "seconds"),
            -1.0,
            "`float` >= 0.0 - at `$.devices",
        ),
        (("devices", "ORT", "nodes", "a", "seconds"), float("nan"), "not JSON: NaN"),
        (("devices", "ORT", "nodes", "a", "source"), "guessed", "Invalid enum value 'guessed'"),
        (
            ("devices", "ORT", "single_load", "time_factor"),
            "1",
            "at `$.devices[...].single_load.time_factor`",
        ),
        (("version",), 5, "expected version 8, got 5. Profile the model again"),
        (("devices", "ORT", "identity"), {}, "missing required field `plugin`"),
        (("transfers", 0, "busy", "b"), True, "at `$[0].busy.b`"),
        (("model",), None, "Profile the model again"),
        (("shapes", "x"), [2**63], "Profile the model again"),
        (("shapes", "x"), [-1], "Profile the model again"),
    ],
)
def test_read_costs_damaged_value_raises(tmp_path, keys, value, words):
    document = to_document(sample())
    _set(document, keys, value)
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(document))
    with pytest.raises(PlanError, match=r"costs\.json") as error:
        read_costs(path)
    assert words in str(error.value)


@pytest.mark.parametrize("text", ["", "[1, 2]", "{", '{"format": 1}'])
def test_read_costs_other_content_raises(tmp_path, text):
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(PlanError):
        read_costs(path)


def test_read_costs_missing_file_raises(tmp_path):
    with pytest.raises(PlanError, match="hetero profile"):
        read_costs(tmp_path / "none.json")


def test_check_costs_of_matching_device():
    check_costs(sample(), MODEL.content_hash, {"ORT": identity("ORT")}, "cost file x")


def test_check_costs_of_other_cluster_nodes():
    def measured_on(**nodes: str) -> Costs:
        identities = {n: replace(identity(n), node=node) for n, node in nodes.items()}
        devices = {n: replace(d, identity=identities[n]) for n, d in sample().devices.items()}
        return replace(sample(), devices=devices)

    def check(costs: Costs, node: str) -> None:
        expected = {"ORT": replace(identity("ORT"), node=node)}
        check_costs(costs, MODEL.content_hash, expected, "cost file x")

    check(measured_on(ORT="10.0.0.1", CPU="10.0.0.1"), THIS_PROCESS)
    with pytest.raises(PlanError, match=r"expected node 10.*measured with local"):
        check(measured_on(ORT=THIS_PROCESS, CPU=THIS_PROCESS), "10.0.0.1")
    with pytest.raises(PlanError, match="expected node local"):
        check(measured_on(ORT="10.0.0.1", CPU="10.0.0.2"), THIS_PROCESS)


def test_costs_basis_sentence():
    assert sample().basis() == (
        "costs in process at 2026-11-22T10:00:00+00:00: 6 node times measured; assumed: load"
    )
    ort, cpu = sample().devices.values()
    node = Time(1e-3, "estimated")
    cluster_devices = {
        "ORT": replace(ort, identity=replace(ort.identity, node="10.0.0.2"), nodes={"a": node}),
        "CPU": replace(
            cpu, identity=replace(cpu.identity, node="10.0.0.1"), disturbed_measurements=("load",)
        ),
    }
    assert replace(sample(), devices=cluster_devices, measured_at="").basis() == (
        "costs on 10.0.0.1, 10.0.0.2: 3 node times measured, 1 estimated; assumed: load; "
        "disturbed by other processes, profile again: load of CPU"
    )


def test_check_costs_lists_every_difference():
    expected = {
        "ORT": replace(identity("ORT"), fingerprint="g", num_threads=4),
        "GPU": identity("GPU"),
        "NULL": identity("NULL"),
    }
    with pytest.raises(PlanError) as error:
        check_costs(sample(), "0" * 64, expected, "cost file x")
    message = str(error.value)
    for part in (
        "0000",
        "expected fingerprint g, measured with f",
        "expected threads 4, measured with 1",
        "GPU was not measured: lost",
        "NULL is missing; available: ORT, CPU",
    ):
        assert part in message
    assert len(error.value.differences) == 5
