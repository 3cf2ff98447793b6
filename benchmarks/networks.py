"""Models shaped like BERT, ViT and LSTM with seeded random weights, in plain ONNX operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Graph:
    """Nodes and weights of a graph under construction."""

    def __init__(self, seed: int, dtype: type = np.float32) -> None:
        self.dtype = dtype
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(seed)

    @property
    def element_type(self) -> int:
        """The TensorProto type of weights and activations."""
        return helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))

    def add(self, op_type: str, *inputs: str, n_outputs: int = 1, **attributes: object) -> str:
        name = f"{op_type.lower()}_{len(self.nodes)}"
        outputs = [name, *(f"{name}_{i}" for i in range(1, n_outputs))]
        self.nodes.append(helper.make_node(op_type, inputs, outputs, name=name, **attributes))
        return name

    def constant(self, value: object, dtype: type | None = None) -> str:
        name = f"constant_{len(self.weights)}"
        array = np.asarray(value, dtype or self.dtype)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int) -> str:
        scale = 1 / math.sqrt(shape[-2] if len(shape) > 1 else shape[0])
        return self.constant(self.random.normal(0, scale, shape))

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        product = self.add("MatMul", x, self.weight(inputs, outputs))
        return self.add("Add", product, self.weight(outputs))

    def layer_norm(self, x: str, width: int) -> str:
        """Add a layer normalisation in the form of exporters before it was an operator."""
        mean = self.add("ReduceMean", x, axes=[-1], keepdims=1)
        centred = self.add("Sub", x, mean)
        square = self.add("Pow", centred, self.constant(2.0))
        variance = self.add("ReduceMean", square, axes=[-1], keepdims=1)
        root = self.add("Sqrt", self.add("Add", variance, self.constant(1e-5)))
        scaled = self.add("Mul", self.add("Div", centred, root), self.constant(np.ones(width)))
        return self.add("Add", scaled, self.constant(np.zeros(width)))

    def gelu(self, x: str) -> str:
        erf = self.add("Erf", self.add("Div", x, self.constant(math.sqrt(2))))
        product = self.add("Mul", x, self.add("Add", erf, self.constant(1.0)))
        return self.add("Mul", product, self.constant(0.5))

    def attention(self, x: str, length: int, width: int, heads: int) -> str:
        shape = self.constant([-1, length, heads, width // heads], np.int64)

        def split(perm: list[int]) -> str:
            return self.add(
                "Transpose", self.add("Reshape", self.linear(x, width, width), shape), perm=perm
            )

        query, key, value = split([0, 2, 1, 3]), split([0, 2, 3, 1]), split([0, 2, 1, 3])
        scores = self.add("Div", self.add("MatMul", query, key), self.constant(8.0))
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), value)
        merged = self.add("Transpose", mixed, perm=[0, 2, 1, 3])
        flat = self.add("Reshape", merged, self.constant([-1, length, width], np.int64))
        return self.linear(flat, width, width)

    def model(self, inputs: list[onnx.ValueInfoProto], output: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "network",
            inputs,
            [helper.make_tensor_value_info(output, self.element_type, None)],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


def bert(
    layers: int = 4, width: int = 512, length: int = 128, heads: int = 0, seed: int = 1
) -> onnx.ModelProto:
    """Return token ids (1, length) -> hidden states: embedding, then post-norm encoder layers.

    `heads`: number of heads; by default each has width 64.
    """
    g = Graph(seed)
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [1, length])
    x = g.add("Add", g.add("Gather", g.weight(2000, width), "ids"), g.weight(length, width))
    x = g.layer_norm(x, width)
    for _ in range(layers):
        x = g.layer_norm(
            g.add("Add", x, g.attention(x, length, width, heads or width // 64)), width
        )
        inner = g.gelu(g.linear(x, width, 4 * width))
        x = g.layer_norm(g.add("Add", x, g.linear(inner, 4 * width, width)), width)
    return g.model([ids], x)


def vit(
    layers: int = 4,
    width: int = 384,
    image: int = 224,
    patch: int = 16,
    heads: int = 0,
    scores: int = 1000,
    seed: int = 2,
) -> onnx.ModelProto:
    """Return image (1, 3, image, image) -> scores: patches, then pre-norm encoder layers."""
    g = Graph(seed)
    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, [1, 3, image, image])
    length = (image // patch) ** 2 + 1
    kernel = g.constant(g.random.normal(0, 0.02, (width, 3, patch, patch)))
    patches = g.add("Conv", "pixels", kernel, g.weight(width), strides=[patch, patch])
    rows = g.add("Reshape", patches, g.constant([1, width, length - 1], np.int64))
    x = g.add("Concat", g.weight(1, 1, width), g.add("Transpose", rows, perm=[0, 2, 1]), axis=1)
    x = g.add("Add", x, g.weight(1, length, width))
    for _ in range(layers):
        y = g.layer_norm(x, width)
        x = g.add("Add", x, g.attention(y, length, width, heads or width // 64))
        inner = g.gelu(g.linear(g.layer_norm(x, width), width, 4 * width))
        x = g.add("Add", x, g.linear(inner, 4 * width, width))
    first = g.add("Gather", g.layer_norm(x, width), g.constant(0, np.int64), axis=1)
    return g.model([pixels], g.linear(first, width, scores))


def lstm(length: int = 50, width: int = 256, layers: int = 2) -> onnx.ModelProto:
    """Return sequence (length, 1, width) -> scores: bidirectional layers, then a linear one."""
    g = Graph(seed=3)
    sequence = helper.make_tensor_value_info("sequence", TensorProto.FLOAT, [length, 1, width])
    x, inputs = "sequence", width
    for _ in range(layers):
        w, r = g.weight(2, 4 * width, inputs), g.weight(2, 4 * width, width)
        b = g.weight(2, 8 * width)
        y = g.add("LSTM", x, w, r, b, hidden_size=width, direction="bidirectional")
        swapped = g.add("Transpose", y, perm=[0, 2, 1, 3])
        x = g.add("Reshape", swapped, g.constant([length, 1, 2 * width], np.int64))
        inputs = 2 * width
    return g.model([sequence], g.linear(x, inputs, 100))


#: Name -> function that makes the model.
NETWORKS: Final[dict[str, Callable[[], onnx.ModelProto]]] = {"bert": bert, "vit": vit, "lstm": lstm}


def save_with_mapped_weights(model: onnx.ModelProto, path: Path) -> None:
    """Write a model whose weights are in a file beside it, which a device can map."""
    onnx.save(
        model,
        path,
        save_as_external_data=True,
        location=f"{path.stem}.weights",
        size_threshold=1024,
    )
