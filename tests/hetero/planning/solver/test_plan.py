"""`plan` as a whole: published optima, constraints, mixing, determinism, clear refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import partition
from hetero.devices.errors import PlanError
from hetero.planning.solver.candidates import Candidate, Hint, Solution
from hetero.planning.solver.problem import is_feasible, make_problem
from tests.support.evaluation import evaluate, plan
from tests.support.every_assignment import every_assignment, least_bottleneck
from tests.support.instances import DATA, load, random_problem, residual_network

#: Best interval plan of each published instance: the data set authors' own dynamic programme.
CONTIGUOUS = {
    "operator/bert_l-3_inference": 27.9186,
    "operator/bert_l-12_inference": 147.478,
    "operator/resnet50_inference": 124.349,
    "layer/bert24_inference": 17.7899,
    "layer/resnet50_inference": 33.7747,
}
#: Best known assignment of each.
FREE = {
    "operator/bert_l-3_inference": 21.9084,
    "operator/bert_l-12_inference": 130.038,
    "operator/resnet50_inference": 124.349,
    "layer/bert24_inference": 17.7147,
    "layer/resnet50_inference": 33.482,
}


def least(found: Solution, hint: Hint = "THROUGHPUT") -> float:
    """Return the best figure of all plans that were found, simple or not."""
    return min(c.figure(hint) for c in (found.chosen, *found.runners_up))


def named(found: Solution, name: str) -> Candidate:
    return next(c for c in (found.chosen, *found.runners_up) if name in c.names)


@pytest.mark.parametrize("name", CONTIGUOUS)
def test_interval_plans_reach_the_published_optimum(name: str) -> None:
    found = plan(load(DATA / f"{name}.json"), seconds=1, contiguous=True)
    assert found.chosen.bottleneck == pytest.approx(CONTIGUOUS[name], rel=1e-5)
    assert found.bound.seconds <= FREE[name]
    assert found.chosen.subgraphs <= 7


@pytest.mark.slow
@pytest.mark.parametrize("name", FREE)
def test_free_plans_reach_the_best_known(name: str) -> None:
    found = plan(load(DATA / f"{name}.json"), seconds=5, max_parts=1)
    whole = [c.bottleneck for c in (found.chosen, *found.runners_up) if len(c.parts) == 1]
    assert min(whole) <= 1.03 * FREE[name]  # mixes of several assignments are below it


@pytest.mark.slow
@pytest.mark.parametrize("mask", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", [n for n in FREE if n.startswith("operator")])
def test_plans_are_near_the_best_of_all_mixes(name: str, seed: int, mask: float) -> None:
    problem = load(DATA / f"{name}.json", mask=mask, seed=seed, slow=3.0)
    found = plan(problem, seconds=2)
    bound = max(b.seconds for b in found.bounds if b.mixing)
    assert found.chosen.bottleneck <= 1.02 * bound
    greedy = named(found, "priority")
    assert greedy.bottleneck >= found.chosen.bottleneck


def test_whole_replicas_beat_a_pipeline_where_the_model_fits_everywhere() -> None:
    problem = make_problem(
        np.full((4, 3), 1.0), [(v, [v + 1], np.ones(3), np.ones(3)) for v in range(3)]
    )
    found = plan(problem, seconds=0.5)
    assert found.chosen.bottleneck == pytest.approx(4 / 3)
    assert sorted(p.share for p in found.chosen.parts) == pytest.approx([1 / 3] * 3)
    assert {p.assignment for p in found.chosen.parts} == {(d,) * 4 for d in range(3)}
    assert found.chosen.bottleneck == pytest.approx(found.bound.seconds, rel=1e-6)
    assert found.bound.mixing
    single = plan(problem, seconds=0.5, max_parts=1)
    assert len(single.chosen.parts) == 1
    assert single.chosen.bottleneck == pytest.approx(least_bottleneck(problem))


def test_a_mix_fits_the_memory_with_all_its_plans() -> None:
    for seed in range(6):
        problem = random_problem(seed, nodes=7, devices=2, memory=np.array([2.2, 2.2]))
        if not len(every_assignment(problem)):
            continue
        found = plan(problem, seconds=0.3)
        for d in range(2):
            held = {v for p in found.chosen.parts for v, on in enumerate(p.assignment) if on == d}
            assert problem.weights[sorted(held)].sum() <= problem.memory[d] * (1 + 1e-9)


def test_same_seed_same_plan() -> None:
    problem = load(DATA / "layer/resnet50_inference.json")
    first = plan(problem, seconds=0.3, seed=5)
    again = plan(problem, seconds=0.3, seed=5)
    assert not first.cut_short
    assert first.chosen == again.chosen
    assert first.runners_up == again.runners_up


def test_within_tolerance_the_plan_with_fewer_subgraphs_is_chosen() -> None:
    found = plan(load(DATA / "layer/bert24_inference.json"), seconds=0.5, max_parts=1)
    strict = next(c for c in found.runners_up if len(c.parts) == 1)
    assert found.chosen.subgraphs < strict.subgraphs
    assert strict.bottleneck <= found.chosen.bottleneck <= strict.bottleneck * 1.03


def test_every_plan_keeps_pins_groups_memory_and_cap() -> None:
    for seed in range(6):
        base = random_problem(seed, nodes=12, devices=3)
        device = int(np.isfinite(base.times[3]).argmax())
        problem = random_problem(
            seed,
            nodes=12,
            devices=3,
            pins=[(3, device)],
            memory=np.full(3, 0.8 * base.weights.sum()),
            max_subgraphs=4,
        )
        try:
            found = plan(problem, seconds=0.3)
        except PlanError as refusal:
            assert refusal.data["constraint"] in {"subgraphs", "memory"}  # noqa: PT017  # some seeds
            continue
        for part in found.chosen.parts:
            assert is_feasible(problem, part.assignment)
            assert part.assignment[3] == device
        assert found.chosen.subgraphs <= 4


def test_latency_plans_beat_or_equal_throughput_plans_on_latency() -> None:
    for seed in range(2):
        problem = random_problem(seed, nodes=9, devices=2)
        quick = plan(problem, "LATENCY", seconds=1)
        best = min(evaluate(problem, tuple(r)).latency for r in every_assignment(problem).tolist())
        assert best * (1 - 1e-12) <= least(quick, "LATENCY") <= 1.05 * best
        assert 0 < quick.bound.seconds <= best


@pytest.mark.parametrize("mask", [pytest.param(0.1, marks=pytest.mark.slow), 0.3])
def test_no_subgraph_costs_more_in_transfers_than_moving_it_would(mask: float) -> None:
    problem = load(DATA / "operator/bert_l-3_inference.json", mask=mask, slow=3.0)
    found = plan(problem, seconds=1, max_parts=1)
    plain = evaluate(problem, found.chosen.assignment)
    for c in range(plain.subgraphs):
        nodes = [v for v, at in enumerate(plain.cluster) if at == c]
        moved = list(found.chosen.assignment)
        for v in nodes:
            moved[v] = 1 - moved[v]
        if is_feasible(problem, tuple(moved)):
            judged = evaluate(problem, tuple(moved))
            assert judged.bottleneck > plain.bottleneck * (
                1 - 1e-9
            ) or judged.loads.sum() > plain.loads.sum() * (1 - 1e-9), nodes


def test_the_benchmark_prints_its_rows_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(DATA / "layer/bert24_inference.json")
    assert partition.main([file, "--mode", "contiguous", "--seconds", "0.5", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert set(row) == {"file", "mode", "bottleneck", "lower_bound", "ratio", "seconds"}
    assert (row["file"], row["mode"]) == (file, "contiguous")
    assert row["bottleneck"] == pytest.approx(17.7899, rel=1e-5)
    assert row["ratio"] == pytest.approx(row["bottleneck"] / row["lower_bound"])


def test_a_large_graph_is_planned_on_supernodes() -> None:
    problem = residual_network(1200, seed=2)
    found = plan(problem, seconds=0.2)
    greedy = named(found, "priority")
    assert found.chosen.bottleneck < 0.8 * greedy.bottleneck
    assert found.bound.seconds <= found.chosen.bottleneck


def small(**limits: object) -> None:
    times = np.array([[1.0, 2.0], [1.0, np.inf], [2.0, 1.0]])
    free = np.zeros(2)
    problem = make_problem(
        limits.pop("times", times),  # type: ignore[arg-type]  # tests pass arrays
        [(0, [1], free, free), (1, [2], free, free)],
        names=["first", "conv", "last"],
        devices=["GPU", "CPU"],
        weights=np.array([10.0, 20.0, 30.0]),
        **limits,  # type: ignore[arg-type]  # tests pass what the case needs
    )
    plan(problem, seconds=0.2)


@pytest.mark.parametrize(
    ("limits", "constraint", "words"),
    [
        ({"times": np.full((3, 2), np.inf)}, "support", "'first', 'conv', 'last'"),
        ({"pins": [(1, 1)]}, "pins", "'conv' is pinned to CPU"),
        ({"pins": [(0, 0), (0, 1)]}, "pins", "'first' is pinned to both GPU and CPU"),
        ({"memory": np.array([15.0, 25.0])}, "memory", "'last' has 30 bytes"),
        ({"memory": np.array([19.0, 90.0])}, "memory", "'conv' has 20 bytes"),
        ({"memory": np.array([28.0, 31.0])}, "memory", "need 60 bytes, which have 59"),
        ({"memory": np.array([35.0, 35.0]), "pins": [(0, 1)]}, "memory", "were not packed"),
        ({"groups": [(1, 2)], "pins": [(2, 1)]}, "colocation", "'conv', 'last'"),
        ({"pins": [(0, 1)], "max_subgraphs": 1}, "subgraphs", "'first', 'conv'"),
        ({"pins": [(0, 1), (2, 1)], "max_subgraphs": 2}, "subgraphs", "fewest found are 3"),
    ],
)
def test_impossible_constraints_name_the_clash(
    limits: dict[str, object], constraint: str, words: str
) -> None:
    with pytest.raises(PlanError) as caught:
        small(**limits)
    assert words in str(caught.value)
    assert caught.value.data["constraint"] == constraint
