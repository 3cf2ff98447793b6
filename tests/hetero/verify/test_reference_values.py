"""Search for inputs that the reference accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx.parser import parse_model

from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.program import Value
from hetero.scheduler.types.isolation import RunFailure, RunResult
from hetero.verify.generated_inputs import KINDS
from hetero.verify.reference_values import ReferenceValues


def test_sizes_that_the_reference_rejects_are_tried_once():
    model = read_model(
        parse_model(
            '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) {y = Relu(x)}'
        )
    )
    sizes: list[int] = []

    def run(part: Model, inputs: Sequence[Mapping[str, Value]]) -> list[RunResult]:
        sizes.extend(draw["x"].size for draw in inputs)
        return [
            {"y": draw["x"]} if draw["x"].size in (8, 32) else RunFailure("error", "wrong size")
            for draw in inputs
        ]

    values = ReferenceValues(model, run, frozenset(model.node_names), len(KINDS))
    draws = values.part_draws(model)
    assert sizes == [3, 3, 3, 2, 1, 4, 8, 8, 8, 16, 32]
    assert [(draw.kind, draw.inputs["x"].size) for draw in draws] == [
        *((kind, 8) for kind in KINDS),
        ("wide", 32),
    ]


def test_further_sizes_include_a_batch_of_one():
    model = read_model(
        parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            g (float[n, m, k] x) => (float[n, m, k] y) {y = Relu(x)}"""
        )
    )

    def run(part: Model, inputs: Sequence[Mapping[str, Value]]) -> list[RunResult]:
        return [{"y": draw["x"]} for draw in inputs]

    for further_sizes in (None, (), ((8, 4, 2), (33,))):
        values = ReferenceValues(
            model, run, frozenset(model.node_names), len(KINDS), further_sizes=further_sizes
        )
        expected = [*((kind, (3, 5, 7)) for kind in KINDS), ("wide", (2, 2, 2))]
        if further_sizes is not None:
            expected += [("wide", (1, 5, 7))]
        if further_sizes:
            expected += [("wide", (8, 4, 2)), ("wide", (33, 33, 33))]
        draws = values.part_draws(model)
        assert [(d.kind, d.inputs["x"].shape) for d in draws] == expected
        assert [d.is_further for d in draws] == [i > 3 for i in range(len(draws))]


def test_further_sizes_are_equal_if_others_are_rejected():
    """But a dimension of size one is repeated along the other."""
    model = read_model(
        parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            g (float[n, 4] x, float[m, 4] z) => (float[k, 4] y) {y = Add(x, z)}"""
        )
    )

    def run(part: Model, inputs: Sequence[Mapping[str, Value]]) -> list[RunResult]:
        return [
            {"y": draw["x"]}
            if len(draw["x"]) in (1, len(draw["z"]))
            else RunFailure("error", "wrong size")
            for draw in inputs
        ]

    values = ReferenceValues(
        model, run, frozenset(model.node_names), len(KINDS), further_sizes=((8, 4, 2),)
    )
    rows = [(len(d.inputs["x"]), len(d.inputs["z"])) for d in values.part_draws(model)]
    assert rows == [(2, 2)] * 3 + [(1, 1), (1, 2), (8, 8)]


def test_unsuitable_sizes_are_not_run():
    model = read_model(
        parse_model(
            '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) {y = Relu(x)}'
        )
    )
    sizes: list[int] = []

    def run(part: Model, inputs: Sequence[Mapping[str, Value]]) -> list[RunResult]:
        sizes.extend(draw["x"].size for draw in inputs)
        return [{"y": draw["x"]} for draw in inputs]

    for is_suitable, expected in (
        (lambda sizes: sizes[0] > 4, [8, 8, 8, 16]),
        (lambda sizes: False, []),
    ):
        sizes.clear()
        values = ReferenceValues(
            model, run, frozenset(model.node_names), len(KINDS), is_suitable=is_suitable
        )
        values.part_draws(model)
        assert sizes == expected
        assert bool(values.problem) == (not expected)


def test_sizes_may_be_sums_of_other_sizes():
    model = read_model(
        parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            g (float[b,new] x, float[b,all] mask, float[b,past] k) => (float[b,all] y)
            {c = Concat<axis = 1>(k, x) y = Add(c, mask)}"""
        )
    )
    shapes: list[tuple[int, ...]] = []

    def run(part: Model, inputs: Sequence[Mapping[str, Value]]) -> list[RunResult]:
        results: list[RunResult] = []
        for draw in inputs:
            (_, new), (batch, total), (_, past) = (draw[name].shape for name in ("x", "mask", "k"))
            is_valid = total == past + new
            if is_valid:
                shapes.append((batch, new, total, past))
            results.append({"y": draw["mask"]} if is_valid else RunFailure("error", "wrong size"))
        return results

    values = ReferenceValues(model, run, frozenset(model.node_names), len(KINDS))
    draws = values.part_draws(model)
    assert shapes == [(3, 5, 9, 4)] * 3 + [(1, 1, 2, 1)]
    assert [draw.kind for draw in draws] == [*KINDS, "wide"]
