"""Simulated fleets against queueing theory and arithmetic."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import onnx
import pytest
import yaml

import hetero
from hetero.apps.simulate.arrivals import Arrivals, read_arrivals, read_batches
from hetero.apps.simulate.fleet import (
    Fleet,
    FleetLink,
    FleetNode,
    Program,
    planned_fleet,
    read_fleet,
)
from hetero.apps.simulate.page import _ticks, page_html
from hetero.apps.simulate.simulation import simulate
from hetero.apps.simulate.virtual_run import run
from hetero.devices.errors import ArgumentError, PlanError
from hetero.devices.model.reader import read_model
from hetero.planning.cost.cost_file import write_costs
from hetero.planning.plan_report import PlanReport
from hetero.planning.plan_task import PlanOptions, plan_task
from hetero.report.html_page import report_style
from tests.support.chains import chain
from tests.support.costs import costs, task


@cache
def plan_of(*seconds: float) -> PlanReport:
    """Return the plan of a chain of nodes with these times, each on its own device."""
    model = read_model(chain(len(seconds)))
    names = [node.name for node in model.nodes]
    times = {f"D{i}": {names[i]: seconds[i]} for i in range(len(seconds))}
    return plan_task(task(model, costs(model, times)), PlanOptions(seconds=1.0))


def fleet(report: PlanReport, **counts: int) -> Fleet:
    devices = planned_fleet(report, counts).devices
    return Fleet(devices, {}, client_s=0.0)


@pytest.mark.slow
def test_one_device_matches_md1_queue():
    # M/D/1: the mean wait is load * time / (2 * (1 - load)) (Pollaczek and Khinchine).
    report = plan_of(0.01)
    for load in (0.3, 0.7):
        arrivals = Arrivals("", load / 0.01)
        result = run(report, fleet(report), arrivals, requests=4_000, seed=1)
        (device,) = (part for part in result.used if part.kind == "device")
        assert device.busy == pytest.approx(load, rel=0.05)
        waited_s = load * 0.01 / (2 * (1 - load))
        assert device.queued_s == pytest.approx(waited_s, rel=0.1)


def shared(report: PlanReport, devices: int, nodes: Mapping[str, FleetNode]) -> Fleet:
    """Return a fleet whose devices each use one core of their node."""
    originals = planned_fleet(report, {"D0": devices}).devices
    computing = tuple(replace(device, cores=1.0) for device in originals)
    return Fleet(computing, {}, client_s=0.0, nodes=nodes)


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.3, 0.6])
def test_shared_core_matches_processor_sharing(load):
    # M/G/1 with processor sharing: the mean number of requests is load / (1 - load), and equals
    # the mean number of busy devices, because no device has two requests.
    report = plan_of(0.01)
    one_core = shared(report, 12, {"local": FleetNode(1)})
    outcome = run(report, one_core, Arrivals("", load / 0.01), requests=6_000, seed=2)
    busy = sum(part.busy for part in outcome.used if part.kind == "device")
    assert busy == pytest.approx(load / (1 - load), rel=0.12)
    (cores,) = (part for part in outcome.used if part.kind == "cores")
    assert cores.busy == pytest.approx(load, rel=0.05)


@pytest.mark.slow
def test_shared_cores_limit_the_rate():
    report = plan_of(0.01)
    for cores, together, rate in ((2, 1.0, 200.0), (2, 0.7, 140.0), (1, 1.0, 100.0)):
        two = shared(report, 2, {"local": FleetNode(cores, together)})
        outcome = run(report, two, None, requests=500)
        assert outcome.throughput_per_s == pytest.approx(rate, rel=0.02)
    # A third device on that core adds nothing; another node doubles the rate.
    advised = simulate(report, two, requests=500)
    assert "processor of node local is busy 100%" in advised.bottleneck
    gains = {change.name: change.gain for change in advised.added}
    assert gains["+1 D0"] == pytest.approx(0.0, abs=0.02)
    assert gains["+1 node local"] == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize(
    ("requests", "near"), [(2_000, 0.3), pytest.param(20_000, 0.12, marks=pytest.mark.slow)]
)
def test_exponential_run_times_match_mm1_queue(requests, near):
    # M/M/1: the mean wait is load * time / (1 - load); quantiles of an exponential.
    report = plan_of(0.01)
    times = tuple(-math.log(1 - (i + 0.5) / 400) for i in range(400))
    exponential = replace(fleet(report), program=Program(run=times))
    outcome = run(report, exponential, Arrivals("", 60.0), requests=requests, seed=3)
    (device,) = (part for part in outcome.used if part.kind == "device")
    assert device.queued_s == pytest.approx(0.6 * 0.01 / 0.4, rel=near)


def test_overheads_of_the_scheduler():
    report = plan_of(0.0001, 0.0001, 0.0001)

    def full(**program: Any) -> float:
        with_overheads = replace(fleet(report), program=Program(**program))
        return run(report, with_overheads, None, requests=500).throughput_per_s

    # Devices in parallel; then one after the other in one interpreter.
    assert full(leave_s=0.001) == pytest.approx(1 / 0.0011, rel=0.02)
    assert full(leave_s=0.001, one_process=True) == pytest.approx(1 / 0.003, rel=0.04)
    assert full(leave_s=0.0005, arrive_s=0.0005, one_process=True) == pytest.approx(
        1 / 0.003, rel=0.04
    )
    slow = replace(fleet(report), program=Program(hop_s=(0.002,), idle=(3.0,), leave_s=0.0))
    single = run(report, slow, Arrivals("", 5.0), requests=100)
    # Three devices wake up; messages go to the first, between them, and to the client.
    assert single.p50_s == pytest.approx(3 * 0.0003 + 4 * 0.002, rel=0.02)


@pytest.mark.parametrize(("in_flight", "least_per_s"), [(2, 500.0), (8, 600.0)])
def test_replica_behind_a_slow_link_adds_its_rate(in_flight, least_per_s):
    # A message of 12 bytes, with a head of 200, takes 8 ms to the far replica. The plan does not
    # know that. Alone the replicas serve 500 and 125 requests per second; with equal turns, two
    # requests in flight would be served at twice 125.
    report = plan_of(0.002)
    near, far = fleet(report, D0=2).devices
    devices = (near, replace(far, node="far"))
    one_message = {("far", "local"): FleetLink(50e-6, 212 / 0.008)}
    slow = Fleet(devices, one_message, client_s=0.0)
    outcome = run(report, slow, None, requests=2_000, in_flight=in_flight)
    assert least_per_s < outcome.throughput_per_s < 630


def test_pipeline_rate_is_that_of_its_slowest_stage():
    report = plan_of(0.004, 0.010, 0.006)
    assert run(report, fleet(report), None, requests=400).throughput_per_s == pytest.approx(
        100, rel=0.01
    )
    doubled = fleet(report, D1=2)
    assert run(report, doubled, None, requests=400).throughput_per_s == pytest.approx(
        1 / 0.006, rel=0.02
    )


def test_simulation_names_bottleneck_and_best_addition():
    report = plan_of(0.004, 0.010, 0.006)
    simulation = simulate(report, fleet(report), Arrivals("", 50.0), requests=250, slo_s=0.1)
    assert "D1" in simulation.bottleneck
    assert simulation.added[0].name == "+1 D1"
    assert simulation.added[0].gain == pytest.approx(2 / 3, abs=0.03)
    assert {change.name: change.rate_per_s for change in simulation.removed} == {
        "-1 D0": 0.0,
        "-1 D1": 0.0,
        "-1 D2": 0.0,
    }
    assert simulation.knee_per_s is not None
    assert 50 < simulation.knee_per_s < simulation.capacity_per_s
    assert (
        json.loads(json.dumps(simulation.document()))["capacity_per_s"] == simulation.capacity_per_s
    )
    again = run(report, fleet(report), Arrivals("", 50.0), requests=250, slo_s=0.1)
    assert again == simulation.outcome


def test_busy_client_is_the_bottleneck():
    report = plan_of(0.0001)
    devices, nodes = planned_fleet(report, {"D0": 4}).devices, {"local": FleetNode(4)}
    busy = Fleet(devices, {}, client_s=200e-6, nodes=nodes)
    simulation = simulate(report, busy, requests=1000)
    assert "client" in simulation.bottleneck
    assert simulation.added[0].name == "+1 client"
    assert simulation.added[0].gain == pytest.approx(1.0, abs=0.05)


def test_cluster_file_is_read(tmp_path):
    report = plan_of(0.004, 0.010)
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "devices:\n  D0: {node: a}\n  slow: {like: D1, node: b, factor: 2, price: 100}\n"
        "  slower: {like: slow, node: b, factor: 2, price: 50}\n"
        "links:\n  - {between: [a, b], delay_ms: 3, megabytes_per_s: 100, price: 5}\n"
        "clients: {count: 2, microseconds: 0, node: a}\n"
        "nodes: {b: {cores: 3, together: 0.8}}\nprogram: {hop_us: [0, 0], leave_us: 0}\n"
    )
    fleet_of_file = read_fleet(path, report)
    assert [(d.name, d.like, d.factor) for d in fleet_of_file.devices] == [
        ("D0", "D0", 1.0),
        ("slow", "D1", 2.0),
        ("slower", "D1", 4.0),
    ]
    assert fleet_of_file.nodes == {"b": FleetNode(3, 0.8)}
    assert fleet_of_file.program == Program(leave_s=0.0, hop_s=(0.0, 0.0))
    single = run(report, fleet_of_file.without("slower"), Arrivals("", 1.0), requests=100)
    assert single.p50_s == pytest.approx(0.004 + 0.020 + 2 * 0.003, rel=0.03)
    assert simulate(report, fleet_of_file, requests=100).added[0].gain_per_price is not None


def test_cluster_file_lists_an_unused_device(tmp_path):
    report = replace(plan_of(0.004), devices=("D0", "spare"))
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "devices: {D0: {node: a}, spare: {node: b}}\nlinks: [{between: [a, b], delay_ms: 3}]\n"
    )
    assert [device.name for device in read_fleet(path, report).devices] == ["D0"]


def test_cluster_file_of_the_documentation_is_read():
    page = (Path(__file__).parents[4] / "docs" / "simulate.md").read_text()
    (text,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    model = read_model(chain(1))
    (name,) = [node.name for node in model.nodes]
    times = {"ORT": {name: 0.001}, "CPU": {name: 0.1}}
    report = plan_task(task(model, costs(model, times)), PlanOptions(seconds=1.0))
    assert {device.name for device in read_fleet(yaml.safe_load(text), report).devices} == {
        "ORT",
        "new",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("devices: [D0]", "expected keys and values"),
        ("devices: {D0: {}}", "no device is like D1"),
        ("devices: {D0: {}, D1: {}, X: {like: Y}}", "neither in the plan"),
        ("devices: {D0: {}, D1: {}, X: {like: Y}, Y: {like: X}}", "like itself: X -> Y -> X"),
        ("devices: {D0: {}, D1: {}, X: {}}", r"'X' is not in the plan \(D0, D1\).*add 'like'"),
        ("devices: {D0: {}, D1: {factor: -1}}", "factor -1"),
        ("devices: {D0: {}, D1: {speed: 2}}", "unknown speed"),
        ("devices: {D0: {}, D1: {}}\nlinks: [{between: [a, b]}]", "expected two of"),
        (
            "devices: {D0: {}, D1: {node: a}}\nlinks: [{between: [a, local], delay_ms: -1}]",
            "delay_ms -1",
        ),
        ("devices: {D0: {}, D1: {}}\nclients: {count: 0}", "count 0"),
        ("devices: {D0: {}, D1: {}}\nclients: [2]", "clients: expected keys and values"),
        ("devices: {D0: {}, D1: 5}", "D1.*expected keys and values"),
        ("devices: {D0: {}, D1: {}}\nlinks: {a: b}", "links: expected a list"),
        ("devices: {D0: {}, D1: {node: a}}\nlinks: [{between: [a, a]}]", "within a node"),
        (
            (
                "devices: {D0: {}, D1: {node: a}}\n"
                "links: [{between: [a, local]}, {between: [local, a]}]"
            ),
            "twice",
        ),
        ("devices: {D0: {}, D1: {}}\nnodes: {rack: {cores: 2}}", "unknown rack"),
        ("devices: {D0: {}, D1: {}}\nnodes: {local: {cores: 1.5}}", "cores 1.5.*whole cores"),
        ("devices: {D0: {}, D1: {}}\nnodes: {local: {cores: 2, together: 2}}", "together 2"),
        ("devices: {D0: {}, D1: {}}\nprogram: {hop_us: [1, x]}", "hop_us 'x'"),
        ("devices: {D0: {}, D1: {}}\nprogram: {one_process: 1}", "true or false"),
        ("devices: \0", "not YAML"),
        ("devices: {", "not YAML"),
    ],
)
def test_cluster_file_with_an_error(tmp_path, text, words):
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=words):
        read_fleet(path, plan_of(0.004, 0.010))


@pytest.mark.parametrize(
    "text",
    ["poisson:0/s", "poisson:x/s", "gamma:3", "gamma:3/s:0", "poisson:3/s:2", "no-such-file"],
)
def test_invalid_arrivals(text):
    with pytest.raises(ArgumentError):
        read_arrivals(text)


@pytest.mark.parametrize("text", ["200/s", "200"])
def test_rate_without_a_process_suggests_poisson(text):
    with pytest.raises(ArgumentError, match="did you mean poisson:200/s"):
        read_arrivals(text)


def test_recorded_arrivals(tmp_path):
    path = tmp_path / "times"
    path.write_text("5.0\n5.5\n6.5\n")
    assert read_arrivals(str(path)).gaps_s == (0.5, 1.0)
    path.write_text("5.0\n4.0\n")
    with pytest.raises(ArgumentError, match="ascend"):
        read_arrivals(str(path))


def test_arrivals_beyond_capacity():
    report = plan_of(0.010)
    with pytest.raises(ArgumentError, match=r"200 requests per second exceed.* capacity of 100"):
        simulate(report, planned_fleet(report, {}), read_arrivals("poisson:200/s"), requests=500)
    with pytest.raises(ArgumentError, match="uses only D0"):
        planned_fleet(report, {"ORT": 2})


def test_batching_shares_run_time():
    report = plan_of(0.010)
    single = run(report, fleet(report), None, requests=500)
    batched = run(report, fleet(report), None, requests=2000, batches=read_batches("4:2"))
    assert single.throughput_per_s == pytest.approx(100, rel=0.01)
    assert batched.throughput_per_s == pytest.approx(200, rel=0.02)
    few = run(report, fleet(report), Arrivals("", 10.0), requests=200, batches=read_batches("4:2"))
    assert few.p50_s == pytest.approx(0.010, rel=0.05)
    for text in ("0", "4:0.5", "x", "4:1:1", "4:1.2.3"):
        with pytest.raises(ArgumentError, match="ROWS:TIME"):
            read_batches(text)


def test_trace_has_each_run_with_its_duration(tmp_path):
    report = plan_of(0.004, 0.010)
    path = tmp_path / "trace.json"
    simulate(report, fleet(report), Arrivals("", 40.0), requests=200, trace=path)
    events = json.loads(path.read_text())["traceEvents"]
    runs = [e for e in events if e["ph"] == "X" and e.get("args", {}).get("device") == "D1"]
    assert len(runs) == 200
    assert {round(run["dur"]) for run in runs} == {10_000}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("maximum", "ticks"),
    [
        (0.0123, [0, 0.0025, 0.005, 0.0075, 0.01, 0.0125]),
        (44.4, [0, 10, 20, 30, 40, 50]),
        (100, [0, 20, 40, 60, 80, 100]),
        (101, [0, 25, 50, 75, 100, 125]),
        (251, [0, 100, 200, 300]),
    ],
)
def test_scales_of_plots_have_round_steps(maximum, ticks):
    assert _ticks(maximum) == ticks


def test_page_plots_the_curve():
    report = plan_of(0.004, 0.010)
    simulation = simulate(
        report, fleet(report), Arrivals("", 40.0), requests=200, slo_s=0.1, curve=True
    )
    rates = [rate for rate, _ in simulation.curve]
    assert rates == sorted(rates)
    assert simulation.curve[-1][1].p99_s > simulation.curve[0][1].p99_s
    page = page_html(simulation)
    tree = ET.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    lines = [line.attrib["points"].split() for line in tree.iter("polyline")]
    assert [len(points) for points in lines] == [len(rates)] * 3
    assert all(name in page for name in ("D1", "client 0", "+1 D1"))
    assert report_style() in page
    assert "<td>client 0</td><td class=n>" in page  # names stand left, numbers right
    assert page.count("requests per second</text>") == 2


def test_costs_of_another_model():
    measured = costs(read_model(chain(2)), {"CPU": {"n0": 0.001, "n1": 0.001}})
    with hetero.Core("inprocess") as core, pytest.raises(PlanError) as raised:
        core.simulate(chain(3), "HETERO:CPU", costs=measured)
    assert raised.value.differences


@pytest.mark.slow
def test_command_writes_trace_and_page(shell, tmp_path):
    model, file = tmp_path / "model.onnx", tmp_path / "costs.json"
    header = '<ir_version: 8, opset_import: ["": 17]>'
    body = "small (float[1, 64] x) => (float[1, 64] y) { h = Exp(x) y = Neg(h) }"
    onnx.save(onnx.parser.parse_model(f"{header} {body}"), model)
    with hetero.Core("inprocess") as core:
        write_costs(core.profile_model(str(model), "HETERO:CPU", seconds=0.5), file)
    trace, page = tmp_path / "trace.json", tmp_path / "page.html"
    words = f"simulate {model} -d HETERO:CPU --costs {file} --executor inprocess -n 200"
    result = shell(f"{words} --batch 4:2 --slo 1s --trace {trace} --html {page}")
    assert result.code == 0, result.err
    assert "capacity" in result.out
    assert json.loads(trace.read_text())["traceEvents"]
    assert page.read_text().count("<svg") == 2
    for option, message in (("--batch 0", "ROWS:TIME"), ("--arrivals poisson:1e9/s", "capacity")):
        result = shell(f"{words} {option}")
        assert result.code != 0
        assert message in result.err
