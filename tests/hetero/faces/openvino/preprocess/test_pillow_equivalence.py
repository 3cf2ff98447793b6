"""Pillow resize modes and shapes from tensors, compared with Pillow."""

import numpy as np
import onnx
import pytest

import hetero
from hetero.preprocess import PrePostProcessor, ResizeAlgorithm

image = pytest.importorskip("PIL.Image", reason="needs pip install 'hetero[pictures]'")


@pytest.mark.parametrize("device", ["HETERO:ORT,CPU", "CPU"])
@pytest.mark.parametrize("size", [(5, 7), (30, 22)])
@pytest.mark.parametrize(
    ("algorithm", "filter_"),
    [
        (ResizeAlgorithm.RESIZE_BILINEAR_PILLOW, "BILINEAR"),
        (ResizeAlgorithm.RESIZE_BICUBIC_PILLOW, "BICUBIC"),
    ],
)
def test_resizes_equal_pillows(device, size, algorithm, filter_):
    height, width = size
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>'
        f" g (float[1,3,{height},{width}] x) => (float[1,3,{height},{width}] y) {{y = Relu(x)}}"
    )
    picture = np.random.default_rng(0).integers(0, 256, (1, 16, 12, 3)).astype(np.float32)
    with hetero.Core("inprocess") as core:
        steps = PrePostProcessor(core.read_model(proto))
        steps.input().tensor().set_from(hetero.Tensor(picture)).set_layout("NHWC")
        steps.input().model().set_layout("NCHW")
        steps.input().preprocess().resize(algorithm)
        output = core.compile_model(steps.build(), device)(picture)[0]
    for channel in range(3):
        resized = image.fromarray(picture[0, ..., channel]).resize(
            (width, height), getattr(image.Resampling, filter_)
        )
        expected = np.maximum(np.asarray(resized), 0)
        np.testing.assert_allclose(output[0, channel], expected, rtol=1e-4, atol=2e-2)
