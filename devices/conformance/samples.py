"""The models that devices are checked with, each with inputs and the outputs that numpy gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import parser

from devices.model import Model
from devices.model_reader import read_model

_HEADER = '<ir_version: 8, opset_import: ["" : 17, "nobody.knows" : 1]>'


@dataclass(frozen=True)
class Sample:
    """A model and one run of it.

    Attributes
    ----------
    name : str
        For messages.
    model : Model
        What is run.
    inputs : mapping of str to array
        What it is given.
    outputs : mapping of str to array
        What the specification says comes out.
    rtol : float
        Relative tolerance.
    """

    name: str
    model: Model
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    rtol: float = 1e-5


def samples() -> Iterator[Sample]:
    """Yield small models of common operators; a device need not support all of them."""
    random = np.random.default_rng(7)
    x = random.standard_normal((2, 3), dtype=np.float32)
    y = random.standard_normal((2, 3), dtype=np.float32)
    weight = random.standard_normal((3, 4), dtype=np.float32)
    relu = np.maximum(x @ weight, 0)

    yield _sample(
        "add",
        "(float[2,3] x, float[2,3] y) => (float[2,3] z) {z = Add(x, y)}",
        {"x": x, "y": y},
        {"z": x + y},
    )
    yield _sample(
        "one relu",
        "(float[2,3] x) => (float[2,3] z) {z = Relu(x)}",
        {"x": x},
        {"z": np.maximum(x, 0)},
    )
    yield _sample(
        "matmul chain",
        "(float[2,3] x) => (float[2,4] z) {h = MatMul(x, w) z = Relu(h)}",
        {"x": x},
        {"z": relu},
        w=weight,
    )
    yield _sample(
        "open batch",
        "(float[N,3] x) => (float[N,4] z) {h = MatMul(x, w) z = Relu(h)}",
        {"x": x},
        {"z": relu},
        w=weight,
    )
    yield _sample(
        "two outputs, one an inner value",
        "(float[2,3] x, float[2,3] y) => (float[2,3] s, float[2,3] z) {s = Add(x, y) z = Relu(s)}",
        {"x": x, "y": y},
        {"s": x + y, "z": np.maximum(x + y, 0)},
    )
    yield _sample(
        "input that passes through",
        "(float[2,3] x) => (float[2,3] x, float[2,3] z) {z = Relu(x)}",
        {"x": x},
        {"x": x, "z": np.maximum(x, 0)},
    )
    yield _sample(
        "constant that passes through",
        "(float[2,3] x) => (float[3,4] w, float[2,3] z) {z = Relu(x)}",
        {"x": x},
        {"w": weight, "z": np.maximum(x, 0)},
        w=weight,
    )
    yield _sample(
        "input that nobody reads",
        "(float[2,3] x, float[2,3] unread) => (float[2,3] z) {z = Relu(x)}",
        {"x": x, "unread": y},
        {"z": np.maximum(x, 0)},
    )
    yield _sample(
        "output that is given twice",
        "(float[2,3] x) => (float[2,3] z, float[2,3] z) {z = Relu(x)}",
        {"x": x},
        {"z": np.maximum(x, 0)},
    )
    yield _sample(
        "value that nobody reads",
        "(float[2,3] x) => (float[2,3] z) {dead = Add(x, x) z = Relu(x)}",
        {"x": x},
        {"z": np.maximum(x, 0)},
    )
    yield _sample(
        "constant node",
        "(float[2,3] x) => (float[2,3] z) {one = Constant<value_float = 1.0>() z = Add(x, one)}",
        {"x": x},
        {"z": x + 1},
    )
    yield _sample(
        "zero rows", "(float[N,3] x) => (float[N,3] z) {z = Relu(x)}", {"x": x[:0]}, {"z": x[:0]}
    )
    yield _sample(
        "integers",
        "(int64[2] a, int64[2] b) => (int64[2] c) {c = Add(a, b)}",
        {"a": np.array([1, 2]), "b": np.array([3, 2**40])},
        {"c": np.array([4, 2**40 + 2])},
    )
    yield _sample(
        "data-dependent shape",
        "(float[2,3] x) => (int64[2,N] z) {z = NonZero(x)}",
        {"x": np.maximum(x, 0)},
        {"z": np.stack(np.nonzero(np.maximum(x, 0)))},
    )
    yield _sample("no nodes", "(float[2,3] x) => (float[2,3] x) {}", {"x": x}, {"x": x})
    yield _sample("nothing but a weight", "() => (float[3,4] w) {}", {}, {"w": weight}, w=weight)
    words = np.array(["a", "βγ"], object)
    yield _sample(
        "text", "(string[2] x) => (string[2] z) {z = Identity(x)}", {"x": words}, {"z": words}
    )


def unknown_operator() -> Model:
    """Return a model whose second node no device knows."""
    return read_model(
        parser.parse_model(
            _HEADER + "odd (float[2,3] x) => (float[2,3] z) {h = Relu(x) z = nobody.knows.Odd(h)}"
        )
    )


def _sample(
    name: str,
    body: str,
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    **weights: np.ndarray,
) -> Sample:
    proto: onnx.ModelProto = parser.parse_model(f"{_HEADER} sample {_declared(body, weights)}")
    proto.graph.name = name
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, key) for key, array in weights.items()
    )
    kept = [port for port in proto.graph.input if port.name not in weights]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    return Sample(name, read_model(proto), inputs, outputs)


def _declared(body: str, weights: Mapping[str, np.ndarray]) -> str:
    """Return the text with weights among its inputs: the parser wants every value declared."""
    ports = [f"float[{','.join(map(str, w.shape))}] {k}" for k, w in weights.items()]
    head, rest = body.removeprefix("(").split(")", 1)
    return f"({', '.join([head] * bool(head) + ports)}){rest}"
