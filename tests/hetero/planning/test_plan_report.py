"""Plan reports: choice, alternatives, advice, bound and prediction are consistent."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re
from typing import Any

import pytest

from hetero.affinity.affinity import Affinity
from hetero.devices.errors import PlanError
from hetero.partition.partition import partition
from hetero.planning.cost.costs import Costs, LinearCost, LoadFactors, Transfer
from hetero.planning.plan_report import PlanReport
from hetero.planning.plan_task import PlanOptions, plan_task
from hetero.planning.predict import predict_latency, predict_stages
from hetero.planning.solver import search
from hetero.planning.task import Constraints, Task
from tests.support.chains import chain, random_model
from tests.support.costs import costs, task

SECONDS = 0.1


def random_task(seed: int) -> Task:
    """Return a task with two or three devices, load factors, and different transfer costs."""
    dice = random.Random(seed)
    model = random_model(seed, dice.choice([2, 4, 5]))
    names = "ABC"[: dice.choice([2, 2, 3])]
    times = {
        d: {
            n: dice.uniform(1e-3, 5e-3) for n in model.node_names if d == "A" or dice.random() > 0.1
        }
        for d in names
    }
    model_costs = costs(model, times, call_s=dice.choice([0.0, 3e-4]))

    def line() -> LinearCost:
        return LinearCost(dice.choice([0.0, 2e-4, 2e-3]), dice.choice([0.0, 1e-6]), "measured")

    devices = {
        name: dataclasses.replace(
            device,
            core_sharing_factor=dice.choice([1.0, 1.3]),
            concurrent_load=LoadFactors(dice.choice([1.3, 1.6]), dice.choice([0.0, 5e-4])),
        )
        for name, device in model_costs.devices.items()
    }
    transfers = {pair: Transfer(line(), line()) for pair in model_costs.transfers}
    return task(model, dataclasses.replace(model_costs, devices=devices, transfers=transfers))


@pytest.mark.parametrize(("devices_of_nodes", "seconds"), [("AA", 2.0), ("AB", 4.0)])
def test_latency_includes_core_sharing_of_concurrent_devices(devices_of_nodes, seconds):
    model = chain(2)
    planning_task = costs(model, {d: dict.fromkeys(model.node_names, 1.0) for d in "AB"})
    devices = {
        d: dataclasses.replace(cost, core_sharing_factor=2.0)
        for d, cost in planning_task.devices.items()
    }
    planning_task = task(model, dataclasses.replace(planning_task, devices=devices))
    affinity = Affinity(dict(zip(model.node_names, devices_of_nodes, strict=True)), {})
    assert predicted_costs(planning_task, affinity)[1] == pytest.approx(seconds)


def predicted_costs(planning_task: Task, devices_of_nodes: Any) -> tuple[float, float]:
    """Return the predicted bottleneck and latency of an affinity."""
    split = partition(planning_task.model, devices_of_nodes)
    concurrent = len({s.device for s in split.subgraphs}) > 1
    loads = dict.fromkeys(planning_task.devices, 0.0)
    for s in predict_stages(planning_task, split, concurrent=concurrent):
        loads[s.device] += s.run_s + s.transfer_s + s.overhead_s
    return max(loads.values()), predict_latency(planning_task, split, concurrent=concurrent)


def priority_affinity(planning_task: Task) -> Affinity:
    names = planning_task.model.node_names
    return Affinity(
        {n: next(d for d in planning_task.devices if n in planning_task.supports[d]) for n in names}
    )


def millis(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.e+-]+) ms", text)]


@pytest.mark.sampled(4, "seed", "hint", "policy")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("hint", ["THROUGHPUT", "LATENCY"])
@pytest.mark.parametrize("policy", ["AUTO", "PRIORITY"])
def test_report_figures_are_consistent(seed, hint, policy):
    planning_task = random_task(seed)
    replicates = bool(seed % 2)
    options = PlanOptions(policy, hint, SECONDS, replicates=replicates)
    report = plan_task(planning_task, options, priority_affinity(planning_task))
    (row,) = [a for a in report.alternatives if a.chosen]
    assert (row.bottleneck_s, row.latency_s) == (report.bottleneck_s, report.latency_s)
    assert row.replicas == len(report.replicas)
    assert row.subgraphs * row.replicas == len(report.stages)
    if len(report.replicas) == 1:
        assert predicted_costs(planning_task, report.affinity) == pytest.approx(
            (row.bottleneck_s, row.latency_s)
        )
    latency = hint == "LATENCY"

    def objective_s(a: Any) -> float:
        return float(a.latency_s if latency else a.bottleneck_s)

    assert report.figure_s == objective_s(row)
    assert [objective_s(a) for a in report.alternatives] == sorted(
        map(objective_s, report.alternatives)
    )
    if policy == "AUTO":
        eligible = [a for a in report.alternatives if replicates or a.replicas == 1]
        assert objective_s(row) <= min(map(objective_s, eligible)) * 1.03 * (1 + 1e-9)
    assert len({a.name for a in report.alternatives}) == len(report.alternatives)
    for line in report.advice:
        better, now = millis(line)
        assert better < now == pytest.approx(report.figure_s * 1e3, rel=1e-3)
    # The bound is for the same objective, and no plan is better.
    assert report.ratio == pytest.approx(report.figure_s / report.bound_s)
    assert report.ratio >= 1 - 1e-9
    assert millis(report.sentence())[0] == pytest.approx(report.figure_s * 1e3, rel=1e-3)
    names = planning_task.model.node_names
    options = [[d for d in planning_task.devices if n in planning_task.supports[d]] for n in names]
    best = min(
        predicted_costs(planning_task, dict(zip(names, devices, strict=True)))[latency]
        for devices in itertools.product(*options)
    )
    assert report.bound_s <= best * (1 + 1e-9)


def single_device_task() -> Task:
    """Return a task with a device that is best alone, and slowed by concurrent load."""
    model = chain(4)
    planning_task = costs(model, {"A": dict.fromkeys(model.node_names, 1e-3), "B": {"n0": 9e-3}})
    return task(model, with_concurrent_load(planning_task, 1.4))


def with_concurrent_load(planning_task: Costs, load: float) -> Costs:
    devices = {
        n: dataclasses.replace(c, concurrent_load=LoadFactors(load))
        for n, c in planning_task.devices.items()
    }
    return dataclasses.replace(planning_task, devices=devices)


def test_single_device_plan_has_consistent_costs():
    report = plan_task(single_device_task(), PlanOptions(seconds=SECONDS))
    assert set(report.affinity.values()) == {"A"}
    rows = {a.name: a for a in report.alternatives}
    assert rows["single A"].bottleneck_s == report.bottleneck_s == pytest.approx(4e-3)
    assert rows["single A"].chosen
    assert not [name for name in rows if "tidied" in name and rows[name].devices == ("A",)]
    assert report.ratio == pytest.approx(1.0)


def test_bound_scope_depends_on_replication():
    """One indivisible node: the bound is 1 ms without replicas, and 0.5 ms with them."""
    model = chain(1)
    planning_task = task(model, costs(model, {d: {"n0": 1e-3} for d in "AB"}))
    without_replicas = plan_task(planning_task, PlanOptions(seconds=SECONDS, replicates=False))
    assert (without_replicas.bound_s, without_replicas.ratio) == (
        pytest.approx(1e-3),
        pytest.approx(1.0),
    )
    assert "without replication" in without_replicas.bound_scope
    assert any("REPLICAS=plan" in line for line in without_replicas.advice)
    with_replicas = plan_task(planning_task, PlanOptions(seconds=SECONDS, replicates=True))
    assert with_replicas.bound_s == pytest.approx(0.5e-3)
    assert with_replicas.ratio == pytest.approx(1.0)


def test_priority_policy_violated_constraint_raises():
    model = chain(4)
    planning_task = costs(model, {d: dict.fromkeys(model.node_names, 1e-3) for d in "AB"})
    priority = Affinity({"n0": "A", "n1": "B", "n2": "A", "n3": "B"})
    options = PlanOptions(policy="PRIORITY", seconds=SECONDS)
    with pytest.raises(PlanError, match="subgraphs") as error:
        plan_task(task(model, planning_task, Constraints(max_subgraphs=2)), options, priority)
    assert error.value.constraint == "subgraphs"
    constraints = Constraints(colocation={"g": ("n0", "n1")})
    with pytest.raises(PlanError, match="violates"):
        plan_task(task(model, planning_task, constraints), options, priority)
    with pytest.raises(PlanError, match="C: no costs"):
        plan_task(
            task(model, planning_task), options, Affinity(dict.fromkeys(model.node_names, "C"))
        )


def without_planning_time(report: PlanReport) -> PlanReport:
    return dataclasses.replace(report, planning_s=0.0)


@pytest.mark.parametrize("hint", ["THROUGHPUT", "LATENCY"])
def test_time_limit_ends_the_search(hint, monkeypatch):
    planning_task = random_task(3)
    options = PlanOptions(hint=hint, seconds=SECONDS)
    first = plan_task(planning_task, options)
    assert not first.cut_short
    assert without_planning_time(plan_task(planning_task, options)) == without_planning_time(first)
    monkeypatch.setattr(search, "DEADLINE_FRACTIONS", (0.8, 1.0))
    with monkeypatch.context() as slow:
        # The time limit is over when the search starts.
        ticks = itertools.count(0.0, 2 * SECONDS)
        slow.setattr("time.monotonic", lambda: next(ticks))
        cut_short_report = plan_task(planning_task, options)
    assert cut_short_report.cut_short
    assert json.loads(json.dumps(cut_short_report.to_dict()))["cut_short"] is True
    assert "time limit ended the search" in cut_short_report.sentence()
