"""Clustering of graphs whose best result is known, and what the quotient merge adds."""

from __future__ import annotations

import json
import random

import pytest

from benchmarks import partition_scale
from hetero.partition import clustering
from hetero.partition.clustering import cluster, path_lower_bound


def chain(count: int) -> list[list[int]]:
    return [[v + 1] if v + 1 < count else [] for v in range(count)]


def test_nothing() -> None:
    assert cluster([], []) == []
    assert path_lower_bound([], []) == 0


def test_a_chain_needs_a_cluster_for_each_change_of_kind() -> None:
    kind = [0, 0, 1, 1, 2, 0, 0]
    assert cluster(chain(7), kind) == [0, 0, 1, 1, 2, 3, 3]
    assert path_lower_bound(chain(7), kind) == 4


def test_separate_nodes_of_a_kind_are_together() -> None:
    assert sorted(set(cluster([[]] * 6, [0, 1, 0, 1, 0, 1]))) == [0, 1]


def test_convex_parts_that_would_wait_for_each_other_are_cut() -> None:
    # a1 -> b1 and b2 -> a2: {a1, a2} and {b1, b2} are convex, and a cycle.
    numbers = cluster([[2], [], [], [1]], [0, 0, 1, 1])
    assert max(numbers) == 2
    assert numbers[0] <= numbers[2]
    assert numbers[3] <= numbers[1]


def test_the_right_first_kind_is_found() -> None:
    # Kind 1 first: {b}, {a, a2}, {b2}. Kind 0 first would need four.
    numbers = cluster([[1], [2], [], [2]], [1, 0, 1, 0])
    assert max(numbers) == 2


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 nodes have successors, 1 have a kind"):
        cluster([[1], []], [0])


def random_quotient(seed: int, count: int, kinds: int) -> tuple[list[list[int]], list[int]]:
    dice = random.Random(seed)
    successors: list[list[int]] = [[] for _ in range(count)]
    for _ in range(2 * count):
        a, b = sorted(dice.sample(range(count), 2))
        successors[a].append(b)
    return successors, [dice.randrange(kinds) for _ in range(count)]


def is_acyclic(successors: list[list[int]], numbers: list[int]) -> bool:
    """Return whether the quotient has no cycle, by depth-first search."""
    after: dict[int, set[int]] = {n: set() for n in numbers}
    for v, ws in enumerate(successors):
        after[numbers[v]] |= {numbers[w] for w in ws} - {numbers[v]}
    state: dict[int, str] = {}

    def visit(n: int) -> bool:
        if n in state:
            return state[n] == "done"
        state[n] = "open"
        good = all(visit(m) for m in after[n])
        state[n] = "done"
        return good

    return all(visit(n) for n in after)


@pytest.mark.parametrize("seed", range(20))
def test_merging_single_nodes_leaves_no_pair_that_could_still_be_merged(seed: int) -> None:
    successors, kind = random_quotient(seed, 30, 3)
    numbers = clustering._merge(successors, kind, list(range(30)))
    assert is_acyclic(successors, numbers)
    kinds = dict(zip(numbers, kind, strict=True))
    for a in kinds:
        for b in kinds:
            if a < b and kinds[a] == kinds[b]:
                joined = [a if n == b else n for n in numbers]
                assert not is_acyclic(successors, joined)


@pytest.mark.parametrize("seed", range(5))
def test_merging_window_by_window_stays_in_running_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clustering, "MERGE_WINDOW", 7)
    successors, kind = random_quotient(seed, 60, 3)
    numbers = clustering._merge(successors, kind, list(range(60)))
    assert max(numbers) < 59
    assert sorted(set(numbers)) == list(range(max(numbers) + 1))
    assert all(numbers[v] <= numbers[w] for v, ws in enumerate(successors) for w in ws)
    assert len({(n, k) for n, k in zip(numbers, kind, strict=True)}) == max(numbers) + 1


def test_many_kinds() -> None:
    kind = list(range(6))
    assert cluster(chain(6), kind) == kind


def test_the_benchmark_prints_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert partition_scale.main(["--scale", "3000", "--width", "8", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert set(figures) == {"nodes", "seconds", "subgraphs", "path_lower_bound"}
    assert figures["nodes"] == 3000
    assert figures["path_lower_bound"] <= figures["subgraphs"] < 1.2 * figures["path_lower_bound"]
    assert partition_scale.main(["--scale", "300"]) == 0
    assert "plain labelling" in capsys.readouterr().out
