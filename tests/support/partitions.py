"""Checks of invariants that every partition has."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.partition.partition import Partition
from tests.support.graphs import evaluate
from tests.support.merge import merge


def check_rules(part: Partition, model: Model, affinity: Mapping[str, str]) -> None:
    """Check a partition against its definition, recomputed from the model."""
    listed = [name for s in part.subgraphs for name in s.node_names]
    assert sorted(listed) == sorted(model.node_names)  # each node occurs once
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
                assert ends[0] <= ends[1]  # subgraphs run in order, so there is no cycle
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
