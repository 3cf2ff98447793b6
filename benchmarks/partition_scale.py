"""Partitioning of large models: time and number of subgraphs, against a simple labelling.

The model is random and layered: each node reads a node of the previous layer, and some also read
one of any earlier layer, like skip connections. Each node is on a random device. The baseline
labels each node with its device and the number of device changes before it, and groups equal
labels.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import onnx
from onnx import helper

from benchmarks.tables import print_rows
from hetero.devices.model.model import Model, Node
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.partition.clustering import path_lower_bound
from hetero.partition.partition import assign_clusters, partition

DEVICES: Final = ("ORT", "CPU", "NULL")
T = TypeVar("T")


def layered_model(count: int, width: int, skips: float, seed: int) -> Model:
    """Return a model of `count` nodes, `width` per layer; a share `skips` has a second input."""
    dice = random.Random(seed)
    nodes = []
    for v in range(count):
        layer = v // width
        reads = ["x"] if not layer else [f"t{(layer - 1) * width + dice.randrange(width)}"]
        if layer and dice.random() < skips:
            reads.append(f"t{dice.randrange(layer * width)}")
        op = "Add" if len(reads) == 2 else "Abs"
        nodes.append(Node.from_proto(helper.make_node(op, reads, [f"t{v}"], name=f"n{v}")))
    specs = {name: TensorSpec(name, "tensor(float)", (2,)) for name in ("x", f"t{count - 1}")}
    specs |= {f"t{v}": TensorSpec(f"t{v}", "tensor(float)", (2,)) for v in range(count)}
    header = onnx.ModelProto(ir_version=10, opset_import=[helper.make_opsetid("", 21)])
    return Model(
        header,
        name="layers",
        nodes=nodes,
        inputs=[specs["x"]],
        outputs=[specs[f"t{count - 1}"]],
        constants={},
        specs=specs,
    )


def plain_labels(successors: Sequence[Sequence[int]], kind: Sequence[int]) -> int:
    """Return the number of subgraphs from labels (number of device changes before, device)."""
    changes = [0] * len(kind)
    for v, after in enumerate(successors):  # the model's order is topological
        for w in after:
            changes[w] = max(changes[w], changes[v] + (kind[v] != kind[w]))
    return len(set(zip(changes, kind, strict=True)))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code 0."""
    parser = argparse.ArgumentParser(description="Cluster a large random model.")
    parser.add_argument("--scale", type=int, default=100_000, metavar="NODES")
    parser.add_argument("--width", type=int, default=32, help="nodes per layer")
    parser.add_argument(
        "--skips", type=float, default=0.13, help="share of nodes with a second input"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON only")
    options = parser.parse_args(argv)

    model = layered_model(options.scale, options.width, options.skips, options.seed)
    dice = random.Random(options.seed + 1)
    affinity = {name: dice.choice(DEVICES) for name in model.node_names}
    seconds, numbers = _measure(lambda: assign_clusters(model, affinity))
    subgraphs = max(numbers, default=-1) + 1
    kind = [DEVICES.index(affinity[name]) for name in model.node_names]
    successors = [
        [r for value in node.writes for r in model.consumers.get(value, ())] for node in model.nodes
    ]
    bound = path_lower_bound(successors, kind)
    if options.json:
        figures = {
            "nodes": options.scale,
            "seconds": round(seconds, 4),
            "subgraphs": subgraphs,
            "path_lower_bound": bound,
        }
        print(json.dumps(figures))
        return 0
    plain_s, plain = _measure(lambda: plain_labels(successors, kind))
    whole_s, part = _measure(lambda: partition(model, affinity))
    rows = [
        {"way": way, "seconds": took_s, "subgraphs": count, "ratio": count / max(bound, 1)}
        for way, took_s, count in (
            ("clustering, with the graph made from the model", seconds, subgraphs),
            ("plain labelling, without the graph", plain_s, plain),
            ("whole partition", whole_s, len(part.subgraphs)),
        )
    ]
    edges = sum(map(len, successors))
    print_rows(rows, False, nodes=options.scale, edges=edges, wires=len(part.wires), bound=bound)
    return 0


def _measure(work: Callable[[], T]) -> tuple[float, T]:
    started_s = time.perf_counter()
    done = work()
    return time.perf_counter() - started_s, done


if __name__ == "__main__":
    sys.exit(main())
