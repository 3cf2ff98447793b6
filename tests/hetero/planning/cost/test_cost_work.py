"""Counting work, and fitting speeds."""

from __future__ import annotations

import numpy as np
import pytest

from devices.model.light import light_model_inputs
from devices.model.reader import read_model
from hetero.affinity.requests import request_positions
from hetero.planning.cost import Line
from hetero.planning.cost.calibration import Round, fit_client, fit_pace, fit_subgraphs, fit_way
from hetero.planning.cost.work import (
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
        for p in request_positions(model)
        if model.nodes[p].op_type in ("Conv", "Gemm", "MatMul")
    )
    assert operations / 2e9 == pytest.approx(gmacs, rel=0.08)


def test_made_weights_are_not_run_by_requests() -> None:
    model = read_model("light:squeezenet")
    alive = {model.nodes[p].op_type for p in request_positions(model)}
    assert "Conv" in alive
    assert "ConstantOfShape" not in alive


def test_random_nodes_run_with_every_request() -> None:
    model = build("draw: r = RandomUniform()\nadd: y = Add(x, r)", outputs="y")
    assert request_positions(model) == (0, 1)


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


def test_the_whole_keeps_its_time_and_one_disturbed_cut_does_not_count() -> None:
    dispatch, fusion = fit_subgraphs((8e-3, 7e-3), [2e-4, 9e-3, 2e-4, -1e-3])
    assert dispatch.seconds == pytest.approx(2e-4)
    assert dispatch.seconds + fusion.seconds * 8e-3 == pytest.approx(7e-3)
    assert dispatch.source == fusion.source == "calibrated"


@pytest.mark.parametrize(
    ("cuts", "dispatch_s", "source"),
    [([-1e-3], 5e-5, "calibrated"), ([], 5e-5, "estimated"), ([2e-2], 6.3e-3, "calibrated")],
)
def test_a_call_takes_what_one_without_work_does_and_nodes_take_something(
    cuts: list[float], dispatch_s: float, source: str
) -> None:
    dispatch, fusion = fit_subgraphs((7e-3, 7e-3), cuts, least_s=5e-5)
    assert dispatch.seconds == pytest.approx(dispatch_s)
    assert dispatch.seconds + fusion.seconds * 7e-3 == pytest.approx(7e-3)
    assert dispatch.source == fusion.source == source


def test_without_nodes_times_a_call_takes_what_one_without_work_does() -> None:
    dispatch, fusion = fit_subgraphs(None, [2e-4], least_s=1e-4)
    assert (dispatch.seconds, fusion.seconds, fusion.source) == (1e-4, 1.0, "estimated")


def test_pace_fit() -> None:
    """A call takes 1 ms; a neighbour takes the core for 9 ms of one round, and 1 ms of another."""
    quick = Round(0.01, 0.011, 0.012)
    rounds = [Round(0.01, 0.030, 0.040), Round(0.02, 0.030, 0.032), quick, quick, quick]
    pace = fit_pace(rounds, 0.5)
    assert pace.overhead.seconds == pytest.approx(0.001)
    assert pace.load.seconds == pytest.approx(1.1)
    streams = fit_pace([Round(0.010, 0.009, 0.008)], 0.5)
    assert (streams.load.seconds, streams.overhead.seconds) == (pytest.approx(0.8), 0.0)
    busy = fit_pace([Round(0.010, 0.012, 0.011), Round(0.010, 0.013, 0.012)], 0.5, least_s=0.001)
    assert busy.overhead.seconds == pytest.approx(0.001)
    assert busy.load.seconds == pytest.approx(1.05)
    assert fit_pace([Round(0.010, 0.011, 0.012)], 0.5, least_s=9.0).load.seconds > 0
    unknown = fit_pace([], 0.5)
    assert (unknown.load.seconds, unknown.overhead.seconds) == (1.0, 0.5)
    assert unknown.load.source == unknown.overhead.source == "estimated"


def test_real_requests_tell_what_a_way_takes_and_small_ones_what_a_byte_does() -> None:
    small = Line(1e-5, 2e-9, "calibrated")
    assert fit_way(small, [3e-4, 9e-4, 4e-4], 1e5) == Line(pytest.approx(2e-4), 2e-9, "calibrated")
    assert fit_way(small, [1e-5], 1e5).a == 0.0
    assert fit_way(small, [], 1e5) == small


def test_what_requests_need_one_after_the_other() -> None:
    found = fit_client({1: [9e-4, 3e-4], 2: [5e-4, 8e-4]})
    assert (found.request.seconds, found.stage.seconds) == pytest.approx((1e-4, 2e-4))
    assert found(3) == pytest.approx(7e-4)
    assert fit_client({1: [3e-4], 2: [2e-4]})(2) == pytest.approx(3e-4)
    assert fit_client({})(5) == 0.0
