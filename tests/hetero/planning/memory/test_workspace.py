"""Workspace of operators in bytes, computed by hand; a float has 4 bytes."""

from __future__ import annotations

import pytest
from onnx.parser import parse_model

from hetero.devices.model.reader import read_model
from hetero.devices.plugin.memory_traits import MemoryTraits
from hetero.planning.memory.workspace import workspace_nbytes


@pytest.mark.parametrize(
    ("shape", "weights", "node", "nbytes"),
    [
        # Columns of 2 channels and 3 x 3 elements, for each of 4 x 4 windows.
        ("1,2,6,6", "3,2,3,3", "Conv(x, w)", 72 * 16),
        # The same for 6 x 6 windows, and one padded image.
        ("1,2,6,6", "3,2,3,3", "Conv<pads=[1,1,1,1]>(x, w)", 72 * 36 + 288),
        ("2,2,6,6", "3,2,3,3", "Conv<pads=[1,1,1,1]>(x, w)", 72 * 36 + 288),
        ("1,2,6,6", "3,2,1,1", "Conv(x, w)", 0),
        ("1,2,6,6", "3,2,1,1", "Conv<pads=[1,1,1,1]>(x, w)", 8 * 64 + 288),
        # 9 inputs with 5 channels of 2 x 2 elements each, and their sum of 5 x 4 x 4.
        ("1,2,3,3", "2,5,2,2", "ConvTranspose(x, w)", 4 * (9 * 20 + 80)),
        # 2 channels of 2 x 6 elements.
        ("1,2,4,6", "1", "MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)", 96),
        ("1,2,8", "1", "MaxPool<kernel_shape=[2], strides=[2]>(x)", 0),
        ("2,5", "1", "Softmax(x)", 40),
        ("2,5", "1", "Relu(x)", 0),
        ("2,5", "1", "own.Softmax(x)", 0),
    ],
)
def test_workspace_of_an_operator(shape, weights, node, nbytes):
    text = f"""<ir_version: 9, opset_import: ["": 18, "own": 1]>
    g (float[{shape}] x, float[{weights}] w) => (y) {{ y = {node} }}"""
    model = read_model(parse_model(text))
    assert workspace_nbytes(model, model.nodes[0], MemoryTraits()) == nbytes
    tiled = MemoryTraits(overwrites_inputs=True)
    assert workspace_nbytes(model, model.nodes[0], tiled) == 0


@pytest.mark.parametrize(
    "node", ["Conv(x, w)", "ConvTranspose(x, w)", "MaxPool<kernel_shape=[2]>(x)"]
)
def test_inputs_of_unknown_rank_have_no_workspace(node):
    text = f"""<ir_version: 9, opset_import: ["": 18]>
    g (float[] x, float[] w) => (y) {{ y = {node} }}"""
    model = read_model(parse_model(text))
    assert [port.shape for port in model.inputs] == [None, None]
    assert workspace_nbytes(model, model.nodes[0], MemoryTraits()) == 0
