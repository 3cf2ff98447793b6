"""Plans that fit memory budgets: compared with all assignments, and errors of infeasible ones."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import pytest
from onnx import helper, numpy_helper

from hetero.devices.errors import PlanError
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.memory_traits import Copies, MemoryTraits
from hetero.partition.partition import Partition, partition
from hetero.planning.memory.device_memory import MemoryModel, parse_nbytes
from hetero.planning.memory.fit import FitSearch
from hetero.planning.plan_task import PlanOptions, plan_task
from hetero.planning.solver.problem import Assignment
from hetero.planning.task import build_problem
from tests.support.costs import costs, task
from tests.support.graphs import proto

#: A device that reads weights in place, and one that keeps a copy of each weight.
PLAIN: Final = MemoryTraits(runtime_nbytes=1000)
COPYING: Final = MemoryTraits(
    runtime_nbytes=500,
    copied_operators=frozenset({"MatMul"}),
    weight_copies=Copies(1.0),
    keeps_values=True,
)
COMPACT: Final = MemoryTraits(
    copied_operators=frozenset({"MatMul"}),
    weight_copies=Copies(1.0),
    compact_options={"PACKS": False},
)
WIDTH: Final = 4


def products(sizes: list[int], branches: random.Random | None = None) -> Model:
    """Return products through hidden widths, in a chain or with random additions between them."""
    ports = [helper.make_tensor_value_info(n, 1, [1, WIDTH]) for n in ("x", f"y{len(sizes) - 1}")]
    nodes, weights, values = [], [], ["x"]
    for i, size in enumerate(sizes):
        for name, shape in ((f"a{i}", (WIDTH, size)), (f"b{i}", (size, WIDTH))):
            weights.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
        source = values[-1]
        if branches is not None and len(values) > 1:
            source = f"s{i}"
            reads = [values[-1], branches.choice(values)]
            nodes.append(helper.make_node("Add", reads, [source], f"add{i}"))
        nodes.append(helper.make_node("MatMul", [source, f"a{i}"], [f"h{i}"], f"up{i}"))
        nodes.append(helper.make_node("MatMul", [f"h{i}", f"b{i}"], [f"y{i}"], f"down{i}"))
        values.append(f"y{i}")
    return read_model(proto(nodes, ports[:1], ports[1:], weights))


def fit_search(
    model: Model, budgets: Mapping[str, int], traits: Mapping[str, MemoryTraits]
) -> FitSearch:
    model_costs = costs(model, {d: dict.fromkeys(model.node_names, 1.0) for d in budgets})
    problem = build_problem(task(model, model_costs), "LATENCY")

    def partition_of(assignment: Assignment) -> Partition:
        return partition(model, problem.affinity(assignment, "test"))

    return FitSearch(problem, MemoryModel(traits, budgets), partition_of)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("seed", range(12))
def test_plan_is_found_if_one_of_all_assignments_fits(seed):
    dice = random.Random(seed)
    model = products([dice.choice([8, 16, 64]) for _ in range(3)], dice)
    total = model.weight_nbytes
    for _ in range(4):
        budgets = {"A": 1000 + dice.randint(0, total), "B": 500 + dice.randint(0, 2 * total)}
        search = fit_search(model, budgets, {"A": PLAIN, "B": COPYING})
        fits = any(
            all(p.fits for p in search.verify(assignment).predictions.values())
            for assignment in itertools.product(range(2), repeat=len(model.nodes))
        )
        if not fits:
            with pytest.raises(PlanError) as caught:
                search.search()
            assert caught.value.data["constraint"] == "memory"
            continue
        predictions = search.search().predictions
        assert all(p.peak_nbytes <= budgets[d] for d, p in predictions.items())


def test_devices_are_filled_in_order():
    model = products([100] * 4)
    stage_nbytes = 2 * 100 * WIDTH * 4
    budgets = {"A": 1000 + 3 * stage_nbytes, "B": 100_000}
    fit = fit_search(model, budgets, {"A": PLAIN, "B": PLAIN}).search()
    assert fit.assignment == (0, 0, 0, 0, 0, 1, 1, 1)
    assert fit.predictions["A"].weights_nbytes == 2.5 * stage_nbytes


def test_alternatives_over_the_budgets_are_marked_and_not_advised():
    model = products([100] * 4)
    traits = {"A": PLAIN, "B": PLAIN}
    model_costs = costs(model, {d: dict.fromkeys(model.node_names, 1.0) for d in traits})
    weights = model.weight_nbytes
    memory = MemoryModel(traits, {"A": 3000 + weights * 3 // 4, "B": 3000 + weights // 4})
    options = PlanOptions(seconds=0.2)
    report = plan_task(task(model, model_costs), options, memory=memory)
    fits = {a.name: a.fits for a in report.alternatives}
    assert not any(fits[name] for name in ("single A", "single B", "replicas"))
    assert [a.fits for a in report.alternatives if a.chosen] == [True]
    # Two copies of the model would be faster, but neither device holds one.
    advised = {line.partition(":")[0] for line in report.advice}
    assert all(fits[name] for name in advised)
    assert all(a.fits for a in plan_task(task(model, model_costs), options).alternatives)


def test_copies_of_weights_are_left_out_if_too_large():
    model = products([100] * 4)
    budgets = {"A": int(1.2 * model.weight_nbytes)}
    (prediction,) = fit_search(model, budgets, {"A": COMPACT}).search().predictions.values()
    assert prediction.compact
    assert prediction.copies_nbytes == 0
    budgets = {"A": int(2.2 * model.weight_nbytes)}
    (prediction,) = fit_search(model, budgets, {"A": COMPACT}).search().predictions.values()
    assert not prediction.compact
    assert prediction.copies_nbytes == model.weight_nbytes


def test_error_names_the_smallest_budget_that_suffices():
    model = products([100] * 4)
    budgets = {"A": 5000, "B": 5000}
    traits = {"A": PLAIN, "B": PLAIN}
    with pytest.raises(PlanError, match="the smallest change that suffices") as caught:
        fit_search(model, budgets, traits).search()
    enough = caught.value.data["budgets_nbytes"]["A"]
    (suggestion,) = re.findall(r"A=(\w+\.?\w*)", str(caught.value))
    for nbytes in (enough, parse_nbytes(suggestion)):
        fit_search(model, {**budgets, "A": nbytes}, traits).search()
    with pytest.raises(PlanError):
        fit_search(model, {**budgets, "A": int(0.9 * enough)}, traits).search()
    assert caught.value.data["added_devices"] == {"A": 2}
    several = dict.fromkeys("ABCD", 5000)
    fit_search(model, several, dict.fromkeys("ABCD", PLAIN)).search()


@pytest.mark.parametrize(
    "changes",
    [
        {"session_nbytes": 2000},
        {"compile_copies": Copies(1.0)},
        {"compile_copies": Copies(1.0), "reused_copies": 1.5},
    ],
)
def test_smallest_budget_is_that_of_the_prediction(changes):
    model = products([100] * 4)
    traits = {"A": replace(PLAIN, **changes)}
    with pytest.raises(PlanError) as caught:
        fit_search(model, {"A": 5000}, traits).search()
    enough = caught.value.data["budgets_nbytes"]["A"]
    fit_search(model, {"A": enough}, traits).search()
    with pytest.raises(PlanError):
        fit_search(model, {"A": int(0.97 * enough)}, traits).search()


def test_error_names_the_stage_that_no_device_holds():
    model = products([1000])
    with pytest.raises(PlanError) as caught:
        fit_search(model, {"A": 900}, {"A": PLAIN}).search()
    smallest = caught.value.data["smallest_stage_nbytes"]
    assert smallest > 1000 + 1000 * WIDTH * 4
