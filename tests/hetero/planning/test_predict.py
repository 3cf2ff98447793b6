"""Predictions compared with figures computed by hand, one term of the cost model at a time.

Each cost is a number that no sum of other costs gives, so that a lost or doubled term is visible.
All values are 12 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from hetero.devices.model.model import Model
from hetero.partition.partition import partition
from hetero.planning.cost.costs import (
    CLIENT,
    Costs,
    DeviceCosts,
    LinearCost,
    LoadFactors,
    Time,
    Transfer,
)
from hetero.planning.plan_report import StagePrediction, WirePrediction
from hetero.planning.predict import predict_latency, predict_stages, predict_wires
from hetero.planning.task import Task
from tests.support.costs import identity, task
from tests.support.graphs import build
from tests.support.rows import for_each_row


def line(a: float, b: float = 0.0) -> LinearCost:
    return LinearCost(a, b, "measured")


def device(times: Mapping[str, float], **factors: Any) -> DeviceCosts:
    nodes = {name: Time(seconds, "measured") for name, seconds in times.items()}
    return DeviceCosts(identity("A"), nodes, **factors)


@dataclass(frozen=True)
class Case:
    """A model on devices, with the seconds that the prediction should give."""

    lines: str
    #: Node -> (device, seconds).
    nodes: Mapping[str, tuple[str, float]]
    latency_s: float
    #: Device and transfer seconds of each stage.
    stages: Sequence[tuple[str, float]]
    inputs: str = "x"
    outputs: str = "y"
    #: (Sender, receiver) -> latency and busy seconds.
    latencies: Mapping[tuple[str, str], LinearCost] = field(default_factory=dict)
    busy: Mapping[tuple[str, str], LinearCost] = field(default_factory=dict)

    def model(self) -> Model:
        return build(self.lines, inputs=self.inputs, outputs=self.outputs)

    def task(self) -> Task:
        free = line(0)
        ends = {*self.latencies, *self.busy}
        model = self.model()
        devices = {
            name: device({n: s for n, (d, s) in self.nodes.items() if d == name})
            for name in sorted({d for d, _ in self.nodes.values()})
        }
        transfers = {e: Transfer(self.latencies.get(e, free), self.busy.get(e, free)) for e in ends}
        return task(model, Costs(model.name, model.content_hash, {}, devices, transfers))

    def affinity(self) -> dict[str, str]:
        return {name: device for name, (device, _) in self.nodes.items()}


CASES = {
    "node times of one device add up": Case(
        "a: v = Neg(x)\nb: y = Neg(v)",
        {"a": ("A", 1), "b": ("A", 2)},
        latency_s=3,
        stages=[("A", 0)],
    ),
    "a request goes to the device and its result returns": Case(
        "a: y = Neg(x)",
        {"a": ("A", 1)},
        latency_s=10 + 1 + 200,
        stages=[("A", 3000 + 40000)],
        latencies={(CLIENT, "A"): line(10), ("A", CLIENT): line(200)},
        busy={(CLIENT, "A"): line(3000), ("A", CLIENT): line(40000)},
    ),
    "each byte of a transfer counts": Case(
        "a: v = Neg(x)\nb: y = Neg(v)",
        {"a": ("A", 0), "b": ("B", 0)},
        latency_s=12 * 1 + 12 * 10 + 12 * 100,
        stages=[("A", 12 * 2 + 12 * 20), ("B", 12 * 20 + 12 * 200)],
        latencies={(CLIENT, "A"): line(0, 1), ("A", "B"): line(0, 10), ("B", CLIENT): line(0, 100)},
        busy={(CLIENT, "A"): line(0, 2), ("A", "B"): line(0, 20), ("B", CLIENT): line(0, 200)},
    ),
    "a wire delays its reader and occupies both devices": Case(
        "a: v = Neg(x)\nb: y = Neg(v)",
        {"a": ("A", 1), "b": ("B", 2)},
        latency_s=1 + 10 + 2,
        stages=[("A", 300), ("B", 300)],
        latencies={("A", "B"): line(10), ("B", "A"): line(77)},
        busy={("A", "B"): line(300), ("B", "A"): line(77)},
    ),
    "several receivers: the slowest decides, for the sender and for the request": Case(
        "a: v = Neg(x)\nb: y = Neg(v)\nc: z = Neg(v)",
        {"a": ("A", 1), "b": ("B", 2), "c": ("C", 4)},
        outputs="y z",
        latency_s=1 + 300 + 4,
        stages=[("A", 7000), ("B", 5000), ("C", 7000)],
        latencies={("A", "B"): line(100), ("A", "C"): line(300)},
        busy={("A", "B"): line(5000), ("A", "C"): line(7000)},
    ),
    "the longer branch decides, not the later one": Case(
        "a: v = Neg(x)\nb: y = Neg(v)\nc: z = Neg(v)",
        {"a": ("A", 1), "b": ("B", 400), "c": ("C", 4)},
        outputs="y z",
        latency_s=1 + 400,
        stages=[("A", 0), ("B", 0), ("C", 0)],
    ),
    "a stage waits for its last input": Case(
        "a: v = Neg(x)\nb: w = Neg(x)\nc: y = Add(v, w)",
        {"a": ("A", 1), "b": ("B", 20), "c": ("C", 4)},
        latency_s=1 + 500 + 4,
        stages=[("A", 0), ("B", 0), ("C", 0)],
        latencies={("A", "C"): line(500), ("B", "C"): line(300)},
    ),
    "inputs of one stage travel in one message, but each is handled": Case(
        "a: y = Add(x, z)",
        {"a": ("A", 1)},
        inputs="x z",
        latency_s=100 + 24 * 10 + 1,
        stages=[("A", 2 * (3 + 12 * 5))],
        latencies={(CLIENT, "A"): line(100, 10)},
        busy={(CLIENT, "A"): line(3, 5)},
    ),
    "results of one stage travel in one message, but each is handled": Case(
        "a: y = Neg(x)\nb: z = Abs(x)",
        {"a": ("A", 1), "b": ("A", 2)},
        outputs="y z",
        latency_s=3 + 100 + 24 * 10,
        stages=[("A", 2 * (3 + 12 * 5))],
        latencies={("A", CLIENT): line(100, 10)},
        busy={("A", CLIENT): line(3, 5)},
    ),
    "a result that another device reads is sent to it and to the client": Case(
        "a: v = Neg(x)\nb: y = Neg(v)",
        {"a": ("A", 1), "b": ("B", 2)},
        outputs="v y",
        latency_s=1 + 10 + 2 + 100,
        stages=[("A", 3000 + 50000), ("B", 3000 + 70000)],
        latencies={("A", "B"): line(10), ("A", CLIENT): line(20), ("B", CLIENT): line(100)},
        busy={("A", "B"): line(3000), ("A", CLIENT): line(50000), ("B", CLIENT): line(70000)},
    ),
    "an early result that returns slowly decides": Case(
        "a: v = Neg(x)\nb: y = Neg(v)",
        {"a": ("A", 1), "b": ("B", 2)},
        outputs="v y",
        latency_s=1 + 500,
        stages=[("A", 0), ("B", 0)],
        latencies={("A", CLIENT): line(500)},
    ),
    "a device receives a value once for two of its stages": Case(
        "a: v = Neg(x)\nb: w = Neg(v)\nc: u = Neg(w)\nd: y = Add(u, v)",
        {"a": ("A", 1), "b": ("B", 2), "c": ("A", 4), "d": ("B", 8)},
        latency_s=1 + 10 + 2 + 100 + 4 + 10 + 8,
        stages=[("A", 3000), ("B", 3000 + 50000), ("A", 50000 + 3000), ("B", 3000)],
        latencies={("A", "B"): line(10), ("B", "A"): line(100)},
        busy={("A", "B"): line(3000), ("B", "A"): line(50000)},
    ),
    "a device runs one stage at a time": Case(
        "a: v = Neg(x)\nb: w = Neg(v)\nc: y = Add(w, v)\nd: t = Neg(x)\ne: z = Add(t, w)",
        {"a": ("A", 1), "b": ("B", 2), "c": ("A", 4), "d": ("C", 30), "e": ("A", 8)},
        outputs="y z",
        # Both `c` and `e` read `w`, so they are one stage, which starts after `d`.
        latency_s=30 + 4 + 8,
        stages=[("A", 0), ("B", 0), ("C", 0), ("A", 0)],
    ),
    "a stage waits for an unrelated stage of its device": Case(
        "a: v = Neg(x)\nb: y = Neg(v)\nc: w = Neg(x)\nd: z = Neg(w)",
        {"a": ("A", 100), "b": ("B", 2), "c": ("C", 1), "d": ("A", 8)},
        outputs="y z",
        # `d` has its input after 1 s, but A runs `a` for 100 s.
        latency_s=100 + 8,
        stages=[("A", 0), ("C", 0), ("B", 0), ("A", 0)],
    ),
    "values between stages of one device are free": Case(
        "a: v = Neg(x)\nb: w = Neg(v)\nc: y = Add(w, v)",
        {"a": ("A", 1), "b": ("B", 2), "c": ("A", 4)},
        latency_s=1 + 10 + 2 + 100 + 4,
        # `v` stays on A: it is sent to B alone.
        stages=[("A", 3000), ("B", 3000 + 50000), ("A", 50000)],
        latencies={("A", "B"): line(10), ("B", "A"): line(100)},
        busy={("A", "B"): line(3000), ("B", "A"): line(50000)},
    ),
}


@for_each_row("name", CASES)
def test_latency(name):
    case = CASES[name]
    split = partition(case.model(), case.affinity())
    assert predict_latency(case.task(), split) == case.latency_s


@for_each_row("name", CASES)
def test_transfers_of_stages(name):
    case = CASES[name]
    split = partition(case.model(), case.affinity())
    stages = predict_stages(case.task(), split)
    assert sorted((s.device, s.transfer_s) for s in stages) == sorted(case.stages)
    assert [s.index for s in stages] == list(range(len(stages)))


@pytest.fixture
def loaded():
    """Two devices with different factors alone and under load."""
    model = build("a: v = Neg(x)\nb: w = Neg(v)\nc: y = Neg(w)", outputs="y")
    factors = {
        "core_sharing_factor": 3.0,
        "single_load": LoadFactors(5.0, 0.1),
        "concurrent_load": LoadFactors(7.0, 0.2),
    }
    devices = {"A": device({"a": 1, "b": 2}, **factors), "B": device({"c": 10})}
    return task(model, Costs(model.name, model.content_hash, {}, devices, {}))


@pytest.mark.parametrize(
    ("concurrent", "first"),
    [
        (True, StagePrediction(0, "A", 2, run_s=3 * 7, transfer_s=0, overhead_s=0.2, replica=4)),
        (False, StagePrediction(0, "A", 2, run_s=3 * 5, transfer_s=0, overhead_s=0.1, replica=4)),
    ],
)
def test_stages_under_load(loaded, concurrent, first):
    split = partition(loaded.model, {"a": "A", "b": "A", "c": "B"})
    stages = predict_stages(loaded, split, 4, concurrent=concurrent)
    assert stages == [first, StagePrediction(1, "B", 1, 10, 0, 0, 4)]


def test_stages_are_concurrent_by_default(loaded):
    split = partition(loaded.model, {"a": "A", "b": "A", "c": "B"})
    assert predict_stages(loaded, split) == predict_stages(loaded, split, 0, concurrent=True)
    assert predict_latency(loaded, split) == predict_latency(loaded, split, concurrent=True)


@pytest.mark.parametrize(("concurrent", "latency_s"), [(True, 3 * 3 + 10), (False, 3 + 10)])
def test_latency_with_shared_cores(loaded, concurrent, latency_s):
    split = partition(loaded.model, {"a": "A", "b": "A", "c": "B"})
    assert predict_latency(loaded, split, concurrent=concurrent) == latency_s


def test_wires():
    case = CASES["a device receives a value once for two of its stages"]
    split = partition(case.model(), case.affinity())
    assert sorted(predict_wires(case.task(), split, 2), key=lambda w: (w.producer, w.consumer)) == [
        WirePrediction("v", 0, 1, 12, 10, 2),
        WirePrediction("v", 0, 3, 12, 10, 2),
        WirePrediction("w", 1, 2, 12, 100, 2),
        WirePrediction("u", 2, 3, 12, 10, 2),
    ]
    assert {w.replica for w in predict_wires(case.task(), split)} == {0}
