"""Equal filters give equal channels, whatever the BLAS does with a block of rows."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from devices.kernels.convolve import first_alike
from tests.support.small_models import make_model, run_cpu


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("size", [7, 13, 28])
@pytest.mark.parametrize("known", [True, False], ids=["constant", "given"])
def test_equal_filters_give_equal_channels(kernel: int, size: int, known: bool) -> None:
    rng = np.random.default_rng(size)
    choice = rng.integers(0, 7, 100)
    weights = rng.standard_normal((7, 64, kernel, kernel)).astype(np.float32)[choice]
    x = (rng.standard_normal((1, 64, size, size)) * 1e6).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[kernel // 2] * 4),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    given = {"x": x} if known else {"x": x, "w": weights}
    model = make_model(nodes, given, ["y"], {"w": weights} if known else {})
    (y,) = run_cpu(model, given)
    for group in range(7):
        channels = y[0, choice == group]
        assert np.array_equal(channels, np.broadcast_to(channels[:1], channels.shape))
    assert np.abs(y).max() > 0


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([[1, 2], [1, 3], [1, 2], [5, 6], [1, 3]], [0, 1, 0, 3, 1]),
        ([[1, 1], [1, 1], [1, 1]], [0, 0, 0]),
        ([[1, 2], [1, 3], [5, 6]], None),
        ([[], [], []], None),
    ],
)
def test_first_alike_points_at_the_first_equal_filter(
    rows: list[list[float]], wanted: list[int] | None
) -> None:
    found = first_alike(np, np.array(rows, np.float32))
    assert (None if found is None else found.tolist()) == wanted
