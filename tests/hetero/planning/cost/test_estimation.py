"""Cost estimation: counted work, and fitted speeds."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.affinity.request_dependence import request_dependent_positions
from hetero.devices.model.light_models import light_model_inputs
from hetero.devices.model.reader import read_model
from hetero.planning.cost.estimation import (
    Speed,
    Work,
    count_work,
    fit_speed,
    nonnegative_least_squares,
    with_input_shapes,
)
from tests.support.graphs import build


@pytest.mark.parametrize(
    ("name", "gmacs"),
    # Multiply-accumulates of one 224 x 224 image, as published with the architectures
    # (ResNet-50 in the variant with the stride in the first 1x1 convolution).
    [("resnet50", 3.86), ("vgg19", 19.6), ("squeezenet", 0.35), ("shufflenet", 0.13)],
)
def test_count_work_matches_published_networks(name, gmacs):
    model = read_model(f"light:{name}")
    operations = sum(
        count_work(model, model.nodes[p]).operations
        for p in request_dependent_positions(model)
        if model.nodes[p].op_type in ("Conv", "Gemm", "MatMul")
    )
    assert operations / 2e9 == pytest.approx(gmacs, rel=0.08)


def test_request_dependent_positions_exclude_computed_weights():
    model = read_model("light:squeezenet")
    op_types = {model.nodes[p].op_type for p in request_dependent_positions(model)}
    assert "Conv" in op_types
    assert "ConstantOfShape" not in op_types


def test_request_dependent_positions_include_random_nodes():
    model = build("draw: r = RandomUniform()\nadd: y = Add(x, r)", outputs="y")
    assert request_dependent_positions(model) == (0, 1)


def test_with_input_shapes_scales_work():
    model = read_model("light:resnet50")
    port = model.inputs[0]
    open_model = model.replace(inputs=[type(port)(port.name, port.type, ("N", 3, 224, 224))])
    static_model = with_input_shapes(open_model, {port.name: (4, 3, 224, 224)})
    conv = next(n for n in static_model.nodes if n.op_type == "Conv")
    per_image = count_work(model, conv).operations
    assert count_work(static_model, conv).operations == 4 * per_image
    assert light_model_inputs(model)[port.name].shape == (1, 3, 224, 224)


def test_fit_speed_recovers_coefficients():
    rng = np.random.default_rng(1)
    true_speed = Speed(3e-6, 1e-10, 4e-10)
    works = [Work(*rng.uniform(1e3, 1e7, 2)) for _ in range(40)]
    solution = fit_speed((w, true_speed(w)) for w in works)
    assert solution.start_s == pytest.approx(true_speed.start_s, rel=1e-6)
    assert solution.s_per_operation == pytest.approx(true_speed.s_per_operation, rel=1e-6)
    assert solution.s_per_byte == pytest.approx(true_speed.s_per_byte, rel=1e-6)


def test_nonnegative_least_squares_is_optimal():
    rng = np.random.default_rng(2)
    for _ in range(50):
        table, target = rng.standard_normal((9, 3)), rng.standard_normal(9)
        solution = nonnegative_least_squares(table, target)
        assert (solution >= 0).all()
        # No neighbour is better, and the problem is convex.
        error = np.square(table @ solution - target).sum()
        for step in np.eye(3) * 1e-4:
            for neighbour in (solution + step, np.maximum(solution - step, 0)):
                assert np.square(table @ neighbour - target).sum() >= error - 1e-12
