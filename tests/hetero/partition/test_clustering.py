"""Clustering of graphs with a known minimum, and the properties of any clustering."""

from __future__ import annotations

import json
import random

import pytest

from benchmarks import partition_scale
from hetero.partition.clustering import cluster, path_lower_bound


def chain(count: int) -> list[list[int]]:
    return [[v + 1] if v + 1 < count else [] for v in range(count)]


def test_cluster_empty_graph():
    assert cluster([], []) == []
    assert path_lower_bound([], []) == 0


def test_cluster_chain_splits_at_changes_of_kind():
    kind = [0, 0, 1, 1, 2, 0, 0]
    assert cluster(chain(7), kind) == [0, 0, 1, 1, 2, 3, 3]
    assert path_lower_bound(chain(7), kind) == 4


def test_cluster_groups_independent_nodes_by_kind():
    assert sorted(set(cluster([[]] * 6, [0, 1, 0, 1, 0, 1]))) == [0, 1]


def test_cluster_splits_mutually_dependent_parts():
    # a1 -> b1 and b2 -> a2: {a1, a2} and {b1, b2} are convex, but depend on each other.
    numbers = cluster([[2], [], [], [1]], [0, 0, 1, 1])
    assert max(numbers) == 2
    assert numbers[0] <= numbers[2]
    assert numbers[3] <= numbers[1]


def test_cluster_picks_the_best_first_kind():
    # Kind 1 first gives {b}, {a, a2}, {b2}; kind 0 first gives four clusters.
    numbers = cluster([[1], [2], [], [2]], [1, 0, 1, 0])
    assert max(numbers) == 2


def test_cluster_unequal_lengths_raise():
    with pytest.raises(ValueError, match="got 1 kinds for 2 nodes"):
        cluster([[1], []], [0])


@pytest.mark.parametrize("seed", range(10))
def test_cluster_is_independent_of_kind_numbering(seed):
    dice = random.Random(seed)
    successors: list[list[int]] = [[] for _ in range(30)]
    for _ in range(60):
        a, b = sorted(dice.sample(range(30), 2))
        successors[a].append(b)
    kind = [dice.randrange(3) for _ in range(30)]
    assert cluster(successors, kind) == cluster(successors, [2 - k for k in kind])


def test_cluster_chain_of_distinct_kinds():
    kind = list(range(6))
    assert cluster(chain(6), kind) == kind


def test_partition_scale_benchmark_output(capsys):
    assert partition_scale.main(["--scale", "3000", "--width", "8", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert set(output) == {"nodes", "seconds", "subgraphs", "path_lower_bound"}
    assert output["nodes"] == 3000
    assert output["path_lower_bound"] <= output["subgraphs"] < 1.2 * output["path_lower_bound"]
    assert partition_scale.main(["--scale", "300"]) == 0
    assert "plain labelling" in capsys.readouterr().out
