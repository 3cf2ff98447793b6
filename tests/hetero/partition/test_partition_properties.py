"""Property-based tests of partitions: random graphs on random devices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero.partition.clustering import cluster, path_lower_bound
from hetero.partition.partition import partition
from tests.support.graphs import evaluate, feeds, random_affinity, random_model
from tests.support.partitions import bits, check_merge, check_rules, run_split

DEVICES = ("CPU", "ORT", "OV", "NULL")


cases = given(seed=st.integers(0, 2**32), size=st.integers(0, 24), kinds=st.integers(2, 4))
any_graph = settings(suppress_health_check=list(HealthCheck))


@any_graph
@cases
def test_random_partition_obeys_rules_and_merges_back(seed, size, kinds):
    model = random_model(seed, size)
    affinity = random_affinity(model, DEVICES[:kinds], seed)
    part = partition(model, affinity)
    check_rules(part, model, affinity)
    check_merge(model, part)
    repeated = partition(model, affinity)
    assert repr((repeated.subgraphs, repeated.wires)) == repr((part.subgraphs, part.wires))


@any_graph
@cases
def test_random_partition_computes_the_same_results(seed, size, kinds):
    model = random_model(seed, size)
    part = partition(model, random_affinity(model, DEVICES[:kinds], seed))
    values = feeds(model, seed % 1000)
    assert bits(run_split(part, values)) == bits(evaluate(model, values))


edges = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=14)


def minimum_clusters(successors: list[list[int]], kind: list[int]) -> int:
    """Return the minimum number of clusters by trying every acyclic labelling."""
    count = len(kind)
    for minimum in range(1, count + 1):
        for labels in itertools.product(range(minimum), repeat=count):
            kind_of_label = {}
            if all(
                kind_of_label.setdefault(label, kind[v]) == kind[v]
                for v, label in enumerate(labels)
            ) and all(labels[v] <= labels[w] for v, ws in enumerate(successors) for w in ws):
                return minimum
    return 0


@given(count=st.integers(1, 6), pairs=edges, mask=st.integers(0, 63))
def test_cluster_two_kinds_is_minimal(count, pairs, mask):
    successors: list[list[int]] = [[] for _ in range(count)]
    for a, b in pairs:
        if a < b < count:
            successors[a].append(b)
    kind = [mask >> v & 1 for v in range(count)]
    numbers = cluster(successors, kind)
    assert max(numbers) + 1 == minimum_clusters(successors, kind)
    assert path_lower_bound(successors, kind) <= max(numbers) + 1


@any_graph
@given(seed=st.integers(0, 10_000), count=st.integers(1, 200), kinds=st.integers(1, 6))
def test_cluster_random_graph_is_valid(seed, count, kinds):
    rng = np.random.default_rng(seed)
    order = rng.permutation(count)  # numbers need not be in topological order
    successors: list[list[int]] = [[] for _ in range(count)]
    for _ in range(int(1.5 * count)):
        a, b = sorted(rng.integers(0, count, 2))
        if a != b:
            successors[order[a]].append(int(order[b]))
    kind = rng.integers(0, kinds, count).tolist()
    numbers = cluster(successors, kind)
    assert sorted(set(numbers)) == list(range(max(numbers) + 1))
    assert all(numbers[v] <= numbers[w] for v, ws in enumerate(successors) for w in ws)
    assert len({(number, kind[v]) for v, number in enumerate(numbers)}) == max(numbers) + 1
    assert max(numbers) + 1 >= path_lower_bound(successors, kind)


def test_cluster_cycle_raises():
    with pytest.raises(ValueError, match="cycle among nodes"):
        cluster([[1], [2], [1]], [0, 0, 0])
