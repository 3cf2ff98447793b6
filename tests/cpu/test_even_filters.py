"""Equal filters give equal channels, whatever the BLAS does with a block of rows."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from devices.cpu.plugin import CPUPlugin
from devices.kernels.convolve import first_alike
from devices.model_reader import read_model


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("size", [7, 13, 28])
def test_equal_filters_give_equal_channels(constant: bool, kernel: int, size: int) -> None:
    rng = np.random.default_rng(size)
    distinct = rng.standard_normal((7, 64, kernel, kernel)).astype(np.float32)
    choice = rng.integers(0, 7, 100)
    weights = distinct[choice]
    x = (rng.standard_normal((1, 64, size, size)) * 1e6).astype(np.float32)
    tensors = [numpy_helper.from_array(weights, "w")]
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[kernel // 2] * 4),
            helper.make_node("Relu", ["c"], ["y"]),
        ],
        "filters",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape),
            *(
                []
                if constant
                else [helper.make_tensor_value_info("w", TensorProto.FLOAT, weights.shape)]
            ),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", "M", "H", "W"])],
        tensors if constant else [],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(proto)
    compiled = CPUPlugin().compile_model(read_model(proto))
    (y,) = compiled.run([x] if constant else [x, weights])
    for group in range(7):
        channels = y[0, choice == group]
        assert np.array_equal(channels, np.broadcast_to(channels[:1], channels.shape))
    assert np.abs(y).max() > 0


def test_first_alike_points_at_the_first_equal_filter() -> None:
    w = np.array([[1, 2], [1, 3], [1, 2], [5, 6], [1, 3]], np.float32)
    assert first_alike(np, w).tolist() == [0, 1, 0, 3, 1]
    assert first_alike(np, np.ones((3, 2), np.float32)).tolist() == [0, 0, 0]
    assert first_alike(np, w[[0, 1, 3]]) is None
    assert first_alike(np, np.ones((3, 0), np.float32)) is None
