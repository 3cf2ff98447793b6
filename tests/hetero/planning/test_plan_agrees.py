"""A plan's report agrees with itself: choice, alternatives, advice, bound and prediction."""

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
from hetero.planning.cost.costs import Costs, Line, Pace, Transfer
from hetero.planning.plan_report import PlanReport
from hetero.planning.plan_task import Choice, choose
from hetero.planning.predict import predict
from hetero.planning.solver import search
from hetero.planning.task import Constraints, Task
from tests.support.chains import chain, random_model
from tests.support.costs import costs, task

SECONDS = 0.1


def random_task(seed: int) -> Task:
    """Two or three devices, some slowed by company, lines that differ from pair to pair."""
    dice = random.Random(seed)
    model = random_model(seed, dice.choice([2, 4, 5]))
    names = "ABC"[: dice.choice([2, 2, 3])]
    times = {
        d: {
            n: dice.uniform(1e-3, 5e-3) for n in model.node_names if d == "A" or dice.random() > 0.1
        }
        for d in names
    }
    given = costs(model, times, call_s=dice.choice([0.0, 3e-4]))

    def line() -> Line:
        return Line(dice.choice([0.0, 2e-4, 2e-3]), dice.choice([0.0, 1e-6]), "measured")

    devices = {
        name: dataclasses.replace(
            device,
            share=dice.choice([1.0, 1.3]),
            company=Pace(dice.choice([1.3, 1.6]), dice.choice([0.0, 5e-4])),
        )
        for name, device in given.devices.items()
    }
    transfers = {pair: Transfer(line(), line()) for pair in given.transfers}
    return task(model, dataclasses.replace(given, devices=devices, transfers=transfers))


@pytest.mark.parametrize(("placed", "seconds"), [("AA", 2.0), ("AB", 4.0)])
def test_latency_counts_that_devices_in_company_have_a_share_of_the_cores(
    placed: str, seconds: float
) -> None:
    model = chain(2)
    given = costs(model, {d: dict.fromkeys(model.node_names, 1.0) for d in "AB"})
    devices = {d: dataclasses.replace(cost, share=2.0) for d, cost in given.devices.items()}
    asked = task(model, dataclasses.replace(given, devices=devices))
    affinity = Affinity(dict(zip(model.node_names, placed, strict=True)), {})
    assert figures(asked, affinity)[1] == pytest.approx(seconds)


def figures(given: Task, placed: Any) -> tuple[float, float]:
    """Bottleneck and latency of an affinity, by the prediction of its cut."""
    cut = partition(given.model, placed)
    company = len({s.device for s in cut.subgraphs}) > 1
    stages, _, latency = predict(given, cut, company=company)
    loads = dict.fromkeys(given.devices, 0.0)
    for s in stages:
        loads[s.device] += s.run_s + s.transfer_s + s.overhead_s
    return max(loads.values()), latency


def listed_by(given: Task) -> Affinity:
    names = given.model.node_names
    return Affinity({n: next(d for d in given.devices if n in given.supports[d]) for n in names})


def millis(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.e+-]+) ms", text)]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("hint", ["THROUGHPUT", "LATENCY"])
@pytest.mark.parametrize("policy", ["AUTO", "PRIORITY"])
def test_choice_table_advice_and_bound_agree(seed: int, hint: Any, policy: Any) -> None:
    given = random_task(seed)
    variants = 1 + seed % 2
    choice = Choice(policy, hint, SECONDS, max_variants=variants)
    report = choose(given, choice, listed_by(given))
    (row,) = [a for a in report.alternatives if a.chosen]
    assert (row.bottleneck_s, row.latency_s) == (report.bottleneck_s, report.latency_s)
    assert (row.subgraphs, row.variants) == (len(report.stages), len(report.variants))
    if len(report.variants) == 1:
        assert figures(given, report.affinity) == pytest.approx((row.bottleneck_s, row.latency_s))
    latency = hint == "LATENCY"

    def figure(a: Any) -> float:
        return float(a.latency_s if latency else a.bottleneck_s)

    assert report.figure_s == figure(row)
    assert [figure(a) for a in report.alternatives] == sorted(map(figure, report.alternatives))
    if policy == "AUTO":
        allowed = [a for a in report.alternatives if a.variants <= variants]
        assert figure(row) <= min(map(figure, allowed)) * 1.03 * (1 + 1e-9)
    assert len({a.name for a in report.alternatives}) == len(report.alternatives)
    for line in report.advice:
        better, now = millis(line)
        assert better < now == pytest.approx(report.figure_s * 1e3, rel=1e-3)
    # The bound is of the same figure, and no plan whatever falls below it.
    assert report.ratio == pytest.approx(report.figure_s / report.bound_s)
    assert report.ratio >= 1 - 1e-9
    assert millis(report.sentence())[0] == pytest.approx(report.figure_s * 1e3, rel=1e-3)
    names = given.model.node_names
    able = [[d for d in given.devices if n in given.supports[d]] for n in names]
    best = min(
        figures(given, dict(zip(names, devices, strict=True)))[latency]
        for devices in itertools.product(*able)
    )
    assert report.bound_s <= best * (1 + 1e-9)


def single_wins() -> Task:
    """One device that is best alone, and slowed by company."""
    model = chain(4)
    given = costs(model, {"A": dict.fromkeys(model.node_names, 1e-3), "B": {"n0": 9e-3}})
    return task(model, _loaded(given, 1.4))


def _loaded(given: Costs, load: float) -> Costs:
    devices = {n: dataclasses.replace(c, company=Pace(load)) for n, c in given.devices.items()}
    return dataclasses.replace(given, devices=devices)


def test_a_device_that_works_alone_has_one_figure_everywhere() -> None:
    report = choose(single_wins(), Choice(seconds=SECONDS))
    assert set(report.affinity.values()) == {"A"}
    rows = {a.name: a for a in report.alternatives}
    assert rows["single A"].bottleneck_s == report.bottleneck_s == pytest.approx(4e-3)
    assert rows["single A"].chosen
    assert not [name for name in rows if "tidied" in name and rows[name].devices == ("A",)]
    assert report.ratio == pytest.approx(1.0)


def test_the_bound_of_a_single_plan_is_the_strongest_that_holds_for_it() -> None:
    """One node that cannot be divided: 1 ms is proven without replicas, 0.5 ms with them."""
    model = chain(1)
    given = task(model, costs(model, {d: {"n0": 1e-3} for d in "AB"}))
    one = choose(given, Choice(seconds=SECONDS, max_variants=1))
    assert (one.bound_s, one.ratio) == (pytest.approx(1e-3), pytest.approx(1.0))
    assert "without replication" in one.bound_scope
    assert any("MAX_VARIANTS=2" in line for line in one.advice)
    two = choose(given, Choice(seconds=SECONDS, max_variants=2))
    assert two.bound_s == pytest.approx(0.5e-3)
    assert two.ratio == pytest.approx(1.0)


def test_priority_that_breaks_a_constraint_is_refused_not_replaced() -> None:
    model = chain(4)
    given = costs(model, {d: dict.fromkeys(model.node_names, 1e-3) for d in "AB"})
    listed = Affinity({"n0": "A", "n1": "B", "n2": "A", "n3": "B"})
    choice = Choice(policy="PRIORITY", seconds=SECONDS)
    with pytest.raises(PlanError, match="subgraphs") as caught:
        choose(task(model, given, Constraints(max_subgraphs=2)), choice, listed)
    assert caught.value.constraint == "subgraphs"
    apart = Constraints(colocation={"g": ("n0", "n1")})
    with pytest.raises(PlanError, match="breaks"):
        choose(task(model, given, apart), choice, listed)
    with pytest.raises(PlanError, match="C: no costs"):
        choose(task(model, given), choice, Affinity(dict.fromkeys(model.node_names, "C")))


def strip(report: PlanReport) -> PlanReport:
    return dataclasses.replace(report, planning_s=0.0)


@pytest.mark.parametrize("hint", ["THROUGHPUT", "LATENCY"])
def test_the_clock_ends_a_search_that_takes_longer_than_granted(
    hint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = random_task(3)
    choice = Choice(hint=hint, seconds=SECONDS)
    first = choose(given, choice)
    assert not first.cut_short
    assert strip(choose(given, choice)) == strip(first)
    monkeypatch.setattr(search, "CLOCK", (0.8, 1.0))
    with monkeypatch.context() as slow:
        # By the time that the search begins, the time granted is over.
        ticks = itertools.count(0.0, 2 * SECONDS)
        slow.setattr("time.monotonic", lambda: next(ticks))
        late = choose(given, choice)
    assert late.cut_short
    assert json.loads(json.dumps(late.to_dict()))["cut_short"] is True
    assert "clock" in late.sentence()
