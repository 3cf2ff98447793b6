"""Random graphs, random devices: the rules of a partition, whatever the graph."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devices.model.model import Model
from devices.model.reader import read_model
from hetero.partition.clustering import cluster, path_lower_bound
from hetero.partition.merge import merge
from hetero.partition.partition import Partition, partition
from tests.support.graphs import evaluate, feeds, random_affinity, random_model

DEVICES = ("CPU", "ORT", "OV", "NULL")


def check_rules(part: Partition, model: Model, affinity: Mapping[str, str]) -> None:
    """Check a partition by its definition, without its own tables."""
    listed = [name for s in part.subgraphs for name in s.node_names]
    assert sorted(listed) == sorted(model.node_names)  # each node once
    literals = {
        n.name for n in model.nodes if n.is_constant and any(v in model.consumers for v in n.writes)
    }
    home = {name: s.index for s in part.subgraphs for name in s.node_names if name not in literals}
    for name, index in home.items():
        assert part.subgraphs[index].device == affinity[name]
    fixed = set(model.constants) | {v for n in model.nodes if n.name in literals for v in n.writes}
    expected = set()
    for node in model.nodes:
        for value in node.reads if node.name not in literals else ():
            maker = model.producers.get(value)
            if maker is not None and value not in fixed:
                ends = home[model.nodes[maker].name], home[node.name]
                assert ends[0] <= ends[1]  # runs in order, so no cycle
                if ends[0] != ends[1]:
                    expected.add((value, *ends))
    wires = [(w.tensor, w.producer, w.consumer) for w in part.wires]
    assert len(wires) == len(set(wires))  # once per tensor and consumer
    assert set(wires) == expected
    for s in part.subgraphs:
        assert not fixed & set(s.inputs)  # constants never cross
        assert set(s.inputs) == {w.tensor for w in part.wires if w.consumer == s.index} | {
            name for name in s.inputs if name in {port.name for port in model.inputs}
        }
        assert tuple(port.name for port in s.model.inputs) == s.inputs
        assert tuple(port.name for port in s.model.outputs) == s.outputs
        onnx.checker.check_model(s.model.to_proto(), full_check=True)


def check_merge(whole: Model, part: Partition) -> None:
    again = merge(part, [read_model(s.model.to_bytes()) for s in part.subgraphs])
    assert again.node_names == whole.node_names
    assert [n.proto for n in again.nodes] == [n.proto for n in whole.nodes]
    assert (again.inputs, again.outputs) == (whole.inputs, whole.outputs)
    assert set(again.constants) == set(whole.constants)
    assert again.content_hash == whole.content_hash


def run_split(part: Partition, given_values: Mapping[str, object]) -> list[object]:
    values = dict(given_values)
    for s in part.subgraphs:
        results = evaluate(s.model, {name: values[name] for name in s.inputs})
        values |= zip(s.outputs, results, strict=True)
    constants = {name: c.array for name, c in part.source.constants.items()}
    values |= {name: constants[name] for name in part.plan.constant_outputs}
    return [values[port.name] for port in part.plan.outputs]


def bits(results: list[object]) -> list[tuple[object, ...]]:
    arrays = [np.asarray(r) for r in results]
    return [(a.dtype, a.shape, a.tobytes()) for a in arrays]


cases = given(seed=st.integers(0, 2**32), size=st.integers(0, 24), kinds=st.integers(2, 4))
any_graph = settings(suppress_health_check=list(HealthCheck))


@any_graph
@cases
def test_rules_hold_and_merging_gives_the_model_back(seed: int, size: int, kinds: int) -> None:
    model = random_model(seed, size)
    affinity = random_affinity(model, DEVICES[:kinds], seed)
    part = partition(model, affinity)
    check_rules(part, model, affinity)
    check_merge(model, part)
    again = partition(model, affinity)
    assert repr((again.subgraphs, again.wires)) == repr((part.subgraphs, part.wires))


@any_graph
@cases
def test_split_computes_what_the_whole_computes(seed: int, size: int, kinds: int) -> None:
    model = random_model(seed, size)
    part = partition(model, random_affinity(model, DEVICES[:kinds], seed))
    values = feeds(model, seed % 1000)
    assert bits(run_split(part, values)) == bits(evaluate(model, values))


edges = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=14)


def fewest(successors: list[list[int]], kind: list[int]) -> int:
    """Return the least number of clusters, by trying every order-respecting labelling."""
    count = len(kind)
    for least in range(1, count + 1):
        for labels in itertools.product(range(least), repeat=count):
            alike = {}
            if all(
                alike.setdefault(label, kind[v]) == kind[v] for v, label in enumerate(labels)
            ) and all(labels[v] <= labels[w] for v, ws in enumerate(successors) for w in ws):
                return least
    return 0


@given(count=st.integers(1, 6), pairs=edges, mask=st.integers(0, 63))
def test_two_kinds_make_the_fewest_clusters(
    count: int, pairs: list[tuple[int, int]], mask: int
) -> None:
    successors: list[list[int]] = [[] for _ in range(count)]
    for a, b in pairs:
        if a < b < count:
            successors[a].append(b)
    kind = [mask >> v & 1 for v in range(count)]
    numbers = cluster(successors, kind)
    assert max(numbers) + 1 == fewest(successors, kind)
    assert path_lower_bound(successors, kind) <= max(numbers) + 1


@any_graph
@given(seed=st.integers(0, 10_000), count=st.integers(1, 200), kinds=st.integers(1, 6))
def test_clusters_are_of_one_kind_and_in_running_order(seed: int, count: int, kinds: int) -> None:
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


def test_a_cycle_is_refused() -> None:
    with pytest.raises(ValueError, match="cycle among nodes"):
        cluster([[1], [2], [1]], [0, 0, 0])
