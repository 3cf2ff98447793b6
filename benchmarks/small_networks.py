"""Small models of 40 to 200 nodes in the form of exporters, which show the overhead of a node.

Weights are random and seeded. ONNX Runtime's quantiser makes the quantised models.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from benchmarks import networks
from benchmarks.networks import Graph

bert = partial(networks.bert, layers=2, width=64, length=32, heads=4, seed=11)
vit = partial(networks.vit, layers=2, width=64, image=32, patch=8, heads=4, scores=100, seed=13)


def gpt(layers: int = 2, width: int = 64, heads: int = 4) -> onnx.ModelProto:
    """Return token ids (batch, length) -> scores, with dynamic shapes."""
    g = Graph(seed=12)
    ids = helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["batch", "length"])

    def number(value: object) -> str:
        return g.constant(value, np.int64)

    batch, length = (
        g.add("Unsqueeze", g.add("Gather", g.add("Shape", "ids"), number(axis)), number([0]))
        for axis in (0, 1)
    )
    positions = g.add("Range", number(0), g.add("Squeeze", length, number([0])), number(1))
    x = g.add(
        "Add",
        g.add("Gather", g.weight(2000, width), "ids"),
        g.add("Gather", g.weight(128, width), positions),
    )
    mask = g.add(
        "Slice",
        g.constant(np.tri(128), np.bool_),
        number([0, 0]),
        g.add("Concat", length, length, axis=0),
        number([0, 1]),
    )
    for _ in range(layers):
        y = g.layer_norm(x, width)
        qkv = g.add("Split", g.linear(y, width, 3 * width), n_outputs=3, axis=-1)
        parts = [qkv, f"{qkv}_1", f"{qkv}_2"]
        shape = g.add("Concat", batch, length, number([heads]), number([width // heads]), axis=0)
        q, k, v = (
            g.add("Transpose", g.add("Reshape", part, shape), perm=perm)
            for part, perm in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
        )
        scores = g.add("Div", g.add("MatMul", q, k), g.constant(4.0))
        scores = g.add("Where", mask, scores, g.constant(-1e9))
        mixed = g.add("MatMul", g.add("Softmax", scores, axis=-1), v)
        merged = g.add("Transpose", mixed, perm=[0, 2, 1, 3])
        flat = g.add("Concat", batch, length, number([width]), axis=0)
        x = g.add("Add", x, g.linear(g.add("Reshape", merged, flat), width, width))
        inner = _gelu_tanh(g, g.linear(g.layer_norm(x, width), width, 4 * width))
        x = g.add("Add", x, g.linear(inner, 4 * width, width))
    return g.model([ids], g.add("MatMul", g.layer_norm(x, width), g.weight(width, 256)))


def _gelu_tanh(g: Graph, x: str) -> str:
    cube = g.add("Mul", g.add("Pow", x, g.constant(3.0)), g.constant(0.044715))
    inner = g.add("Mul", g.add("Add", x, cube), g.constant(0.7978845608))
    gate = g.add("Add", g.add("Tanh", inner), g.constant(1.0))
    return g.add("Mul", g.add("Mul", x, g.constant(0.5)), gate)


def _filters(g: Graph, outputs: int, inputs: int, size: int) -> str:
    scale = (inputs * size * size) ** -0.5
    return g.constant(g.random.normal(0, scale, (outputs, inputs, size, size)))


def _convolution(
    g: Graph, x: str, inputs: int, outputs: int, size: int, stride: int = 1, group: int = 1
) -> str:
    y = g.add(
        "Conv",
        x,
        _filters(g, outputs, inputs // group, size),
        strides=[stride] * 2,
        pads=[size // 2] * 4,
        group=group,
    )
    ones, zeros = g.constant(np.ones(outputs)), g.constant(np.zeros(outputs))
    return g.add("BatchNormalization", y, ones, zeros, zeros, ones)


def mobilenet(image: int = 32, dtype: type = np.float32) -> onnx.ModelProto:
    """Return image (1, 3, image, image) -> scores: inverted residuals with squeeze-excitation."""
    g = Graph(14, dtype)
    pixels = helper.make_tensor_value_info("pixels", g.element_type, [1, 3, image, image])
    low, high = g.constant(0.0), g.constant(6.0)
    x = g.add("Clip", _convolution(g, "pixels", 3, 16, 3, 2), low, high)
    width = 16
    for outputs, stride in ((16, 1), (24, 2), (24, 1), (32, 2), (32, 1), (64, 1), (64, 1)):
        wide = 4 * width
        y = g.add("Clip", _convolution(g, x, width, wide, 1), low, high)
        y = g.add("Clip", _convolution(g, y, wide, wide, 3, stride, wide), low, high)
        mean = g.add("GlobalAveragePool", y)
        gate = g.add("Relu", g.add("Conv", mean, _filters(g, wide // 4, wide, 1)))
        gate = g.add("HardSigmoid", g.add("Conv", gate, _filters(g, wide, wide // 4, 1)))
        y = _convolution(g, g.add("Mul", y, gate), wide, outputs, 1)
        x = g.add("Add", x, y) if (width, stride) == (outputs, 1) else y
        width = outputs
    y = g.add("HardSwish", _convolution(g, x, width, 256, 1))
    flat = g.add("Flatten", g.add("GlobalAveragePool", y))
    return g.model([pixels], g.add("Gemm", flat, g.weight(256, 100), g.weight(100)))


def unet(image: int = 32, width: int = 8, levels: int = 3) -> onnx.ModelProto:
    """Return image (1, 3, image, image) -> a mask of the same size."""
    g = Graph(seed=15)
    pixels = helper.make_tensor_value_info("pixels", g.element_type, [1, 3, image, image])

    def twice(x: str, inputs: int, outputs: int) -> str:
        y = g.add("Relu", _convolution(g, x, inputs, outputs, 3))
        return g.add("Relu", _convolution(g, y, outputs, outputs, 3))

    x, inputs, skips = "pixels", 3, []
    for level in range(levels):
        x = twice(x, inputs, width << level)
        skips.append(x)
        x = g.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        inputs = width << level
    x = twice(x, inputs, 2 * inputs)
    for level in reversed(range(levels)):
        outputs = width << level
        up = g.add("ConvTranspose", x, _filters(g, 2 * outputs, outputs, 2), strides=[2, 2])
        x = twice(g.add("Concat", skips[level], up, axis=1), 2 * outputs, outputs)
    return g.model([pixels], g.add("Sigmoid", g.add("Conv", x, _filters(g, 1, width, 1))))


def lstm(length: int = 20, width: int = 64, layers: int = 2) -> onnx.ModelProto:
    """Return sequence (length, 1, width) -> scores, with exported shapes of the states."""
    g = Graph(seed=16)
    sequence = helper.make_tensor_value_info("sequence", g.element_type, [length, 1, width])
    x, inputs = "sequence", width
    batch = g.add("Gather", g.add("Shape", "sequence"), g.constant(1, np.int64), axis=0)
    first, last = (g.constant([n], np.int64) for n in (2, width))
    axes = g.constant([0], np.int64)
    shape = g.add("Concat", first, g.add("Unsqueeze", batch, axes), last, axis=0)
    state = g.add("Expand", g.constant(0.0), shape)
    for _ in range(layers):
        w, r = g.weight(2, 4 * width, inputs), g.weight(2, 4 * width, width)
        y = g.add(
            "LSTM",
            x,
            w,
            r,
            g.weight(2, 8 * width),
            "",
            state,
            state,
            hidden_size=width,
            direction="bidirectional",
        )
        swapped = g.add("Transpose", y, perm=[0, 2, 1, 3])
        x = g.add("Reshape", swapped, g.constant([0, 0, -1], np.int64))
        x = g.layer_norm(x, 2 * width)
        inputs = 2 * width
    return g.model([sequence], g.linear(x, inputs, 100))


class _Calibration(CalibrationDataReader):
    """Calibration data of one set of inputs, for the ranges of a quantised model."""

    def __init__(self, feeds: dict[str, Any]) -> None:
        self._left = [feeds]

    def get_next(self) -> dict[str, Any] | None:
        return self._left.pop() if self._left else None


def _quantize(quantise: Callable[[Path, Path], None], model: onnx.ModelProto) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "model.onnx"), Path(folder, "quantised.onnx")
        onnx.save(model, source)
        quantise(source, target)
        return onnx.load(target)


def _with_pairs(model: onnx.ModelProto, feeds: dict[str, Any]) -> onnx.ModelProto:
    """Return the model with QuantizeLinear and DequantizeLinear around its operators."""

    def quantise(source: Path, target: Path) -> None:
        # ONNX Runtime computes signed activations, the default, in floats on most processors.
        quantize_static(
            source,
            target,
            _Calibration(feeds),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )

    return _quantize(quantise, model)


def bert_qdq() -> onnx.ModelProto:
    """Return `bert` with quantise-dequantise pairs."""
    return _with_pairs(bert(), {"ids": np.random.default_rng(0).integers(0, 2000, (1, 32))})


def mobilenet_qdq() -> onnx.ModelProto:
    """Return `mobilenet` with quantise-dequantise pairs."""
    image = np.random.default_rng(0).random((1, 3, 32, 32), np.float32)
    return _with_pairs(mobilenet(), {"pixels": image})


#: Name -> function that makes the model.
SMALL_NETWORKS: Final[dict[str, Callable[[], onnx.ModelProto]]] = {
    "small-bert": bert,
    "small-gpt": gpt,
    "small-vit": vit,
    "small-mobilenet": mobilenet,
    "small-unet": unet,
    "small-lstm": lstm,
    # MatMulInteger with activations quantised at run time.
    "small-bert-int8": lambda: _quantize(quantize_dynamic, bert()),
    "small-bert-qdq": bert_qdq,
    "small-mobilenet-qdq": mobilenet_qdq,
    "small-mobilenet-float16": partial(mobilenet, dtype=np.float16),
}
