"""Counting work, and fitting speeds."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.affinity.request_dependence import request_dependent_positions
from hetero.devices.model.light_models import light_model_inputs
from hetero.devices.model.reader import read_model
from hetero.planning.cost.calibration import (
    ASSUMED_CALL_S,
    Round,
    fit_pace,
    low,
    rounds_spoiled,
    settled,
    spoiled,
)
from hetero.planning.cost.estimation import (
    Speed,
    Work,
    fit_speed,
    node_work,
    nonnegative,
    with_shapes,
)
from tests.support.graphs import build


@pytest.mark.parametrize(
    ("name", "gmacs"),
    # Multiply-accumulates of one 224 x 224 image, as published with the architectures
    # (ResNet-50 in the variant with the stride in the first 1x1 convolution).
    [("resnet50", 3.86), ("vgg19", 19.6), ("squeezenet", 0.35), ("shufflenet", 0.13)],
)
def test_operations_of_published_networks(name: str, gmacs: float) -> None:
    model = read_model(f"light:{name}")
    operations = sum(
        node_work(model, model.nodes[p]).operations
        for p in request_dependent_positions(model)
        if model.nodes[p].op_type in ("Conv", "Gemm", "MatMul")
    )
    assert operations / 2e9 == pytest.approx(gmacs, rel=0.08)


def test_made_weights_are_not_run_by_requests() -> None:
    model = read_model("light:squeezenet")
    alive = {model.nodes[p].op_type for p in request_dependent_positions(model)}
    assert "Conv" in alive
    assert "ConstantOfShape" not in alive


def test_random_nodes_run_with_every_request() -> None:
    model = build("draw: r = RandomUniform()\nadd: y = Add(x, r)", outputs="y")
    assert request_dependent_positions(model) == (0, 1)


def test_open_shapes_are_filled() -> None:
    model = read_model("light:resnet50")
    port = model.inputs[0]
    opened = model.replace(inputs=[type(port)(port.name, port.type, ("N", 3, 224, 224))])
    filled = with_shapes(opened, {port.name: (4, 3, 224, 224)})
    conv = next(n for n in filled.nodes if n.op_type == "Conv")
    one = node_work(model, conv).operations
    assert node_work(filled, conv).operations == 4 * one
    assert light_model_inputs(model)[port.name].shape == (1, 3, 224, 224)


def test_speed_is_found_again() -> None:
    rng = np.random.default_rng(1)
    truth = Speed(3e-6, 1e-10, 4e-10)
    works = [Work(*rng.uniform(1e3, 1e7, 2)) for _ in range(40)]
    found = fit_speed((w, truth(w)) for w in works)
    assert found.start_s == pytest.approx(truth.start_s, rel=1e-6)
    assert found.s_per_operation == pytest.approx(truth.s_per_operation, rel=1e-6)
    assert found.s_per_byte == pytest.approx(truth.s_per_byte, rel=1e-6)


def test_coefficients_are_never_negative() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        table, target = rng.standard_normal((9, 3)), rng.standard_normal(9)
        found = nonnegative(table, target)
        assert (found >= 0).all()
        # No better point near it: the problem is convex.
        error = np.square(table @ found - target).sum()
        for step in np.eye(3) * 1e-4:
            for near in (found + step, np.maximum(found - step, 0)):
                assert np.square(table @ near - target).sum() >= error - 1e-12


def test_spikes_do_not_count_and_samples_settle() -> None:
    quiet = [1.0, 1.02, 1.01, 1.03, 1.0] * 4
    spiky = [sample * (170 if i % 3 == 1 else 1) for i, sample in enumerate(quiet)]
    assert low(spiky) == pytest.approx(low(quiet), rel=0.03)
    assert settled(quiet)
    assert settled(spiky)
    assert not settled(quiet[:5])
    busy = [*quiet, *(2 * sample for sample in quiet)]
    assert not settled(busy)
    assert spoiled(busy)
    assert not spoiled(spiky)


def test_pace_fit() -> None:
    """A call takes 1 ms; a neighbour takes the core for 9 ms of one round, and 1 ms of another."""
    quick = Round(0.01, 0.011, 0.012)
    rounds = [Round(0.01, 0.030, 0.040), Round(0.02, 0.030, 0.032), quick, quick, quick]
    pace = fit_pace(rounds)
    assert pace.overhead_s == pytest.approx(0.001)
    assert pace.load == pytest.approx(1.1)
    streams = fit_pace([Round(0.010, 0.009, 0.008)])
    assert (streams.load, streams.overhead_s) == (pytest.approx(0.8), 0.0)
    unknown = fit_pace([])
    assert (unknown.load, unknown.overhead_s) == (1.0, ASSUMED_CALL_S)
    assert unknown.source == "estimated"


def test_rounds_are_spoiled_where_not_even_the_quickest_two_agree() -> None:
    loads = {False: ([1.0, 1.2, 9.0], [1.0]), True: ([1.0, 1.8, 1.9],)}
    for wanted, cases in loads.items():
        for case in cases:
            assert rounds_spoiled([Round(0.01, 0.01, 0.01 * load) for load in case]) == wanted
