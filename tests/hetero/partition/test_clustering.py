"""Clustering of graphs whose best result is known."""

from __future__ import annotations

import json
import random

import pytest

from benchmarks import partition_scale
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


@pytest.mark.parametrize("seed", range(10))
def test_clusters_do_not_depend_on_how_kinds_are_numbered(seed: int) -> None:
    dice = random.Random(seed)
    successors: list[list[int]] = [[] for _ in range(30)]
    for _ in range(60):
        a, b = sorted(dice.sample(range(30), 2))
        successors[a].append(b)
    kind = [dice.randrange(3) for _ in range(30)]
    assert cluster(successors, kind) == cluster(successors, [2 - k for k in kind])


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
