"""Small models for tests of the top layer."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.parser import parse_model

WEIGHT = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def _parsed(text: str) -> onnx.ModelProto:
    model = parse_model(text)
    for node in model.graph.node:
        if not node.domain:
            node.ClearField("domain")  # the parser sets the default: that is another content hash
    return model


def branches(opset: int = 17) -> onnx.ModelProto:
    """Return x -> relu -> (tanh | neg -> abs) -> add -> y over a dynamic batch, with weights."""
    model = _parsed(
        f"""<ir_version: 8, opset_import: ["": {opset}]>
        branches (float[N, 3] x) => (float[N, 4] y) {{
            [matmul] product = MatMul(x, w)
            [relu] positive = Relu(product)
            [tanh] left = Tanh(positive)
            [neg] negative = Neg(positive)
            [abs] right = Abs(negative)
            [add] y = Add(left, right)
        }}"""
    )
    model.graph.initializer.append(numpy_helper.from_array(WEIGHT, "w"))
    return model


def branches_output(x: np.ndarray) -> np.ndarray:
    """Compute `branches` in numpy."""
    positive = np.maximum(x @ WEIGHT, 0)
    return np.tanh(positive) + positive


def unknown_ops() -> onnx.ModelProto:
    """Return a model with two nodes of operators that no device supports."""
    return _parsed(
        """<ir_version: 8, opset_import: ["": 17, "org.example": 1]>
        unknown (float[2] x) => (float[2] y) {
            [relu] a = Relu(x)
            [first] b = org.example.Frobnicate(a)
            [second] y = org.example.Defenestrate(b)
        }"""
    )


def dense() -> onnx.ModelProto:
    """Return x + x over two by three, for devices with few operators."""
    return _parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        dense (float[2, 3] x) => (float[2, 3] y) { [add] y = Add(x, x) }"""
    )
