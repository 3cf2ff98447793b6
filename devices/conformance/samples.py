"""Sample models of the checks, with inputs and expected outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np
import onnx
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model

_HEADER = '<ir_version: 8, opset_import: ["" : 17, "unknown.domain" : 1]>'
#: The first operator set with 4-bit integers.
_TYPED_HEADER = '<ir_version: 10, opset_import: ["" : 21]>'
#: Names of inputs that become weights.
_WEIGHTS: Final = ("w", "shape")
_GRAPHS: Final = {
    "add": "(float[2,3] x, float[2,3] y) => (float[2,3] z) {z = Add(x, y)}",
    "one relu": "(float[2,3] x) => (float[2,3] z) {z = Relu(x)}",
    "one softmax": "(float[2,3] x) => (float[2,3] z) {z = Softmax(x)}",
    "one sigmoid": "(float[2,3] x) => (float[2,3] z) {z = Sigmoid(x)}",
    "one gemm": "(float[2,3] x, float[3,4] w) => (float[2,4] z) {z = Gemm(x, w)}",
    "matmul chain": "(float[2,3] x, float[3,4] w) => (float[2,4] z) {h = MatMul(x, w) z = Relu(h)}",
    "open batch": "(float[N,3] x, float[3,4] w) => (float[N,4] z) {h = MatMul(x, w) z = Relu(h)}",
    "two outputs, one with a reader": (
        "(float[2,3] x, float[2,3] y) => (float[2,3] s, float[2,3] z) {s = Add(x, y) z = Relu(s)}"
    ),
    "input as output": "(float[2,3] x) => (float[2,3] x, float[2,3] z) {z = Relu(x)}",
    "constant as output": (
        "(float[2,3] x, float[3,4] w) => (float[3,4] w, float[2,3] z) {z = Relu(x)}"
    ),
    "unused input": "(float[2,3] x, float[2,3] y) => (float[2,3] z) {z = Relu(x)}",
    "duplicate output": "(float[2,3] x) => (float[2,3] z, float[2,3] z) {z = Relu(x)}",
    "unused node": "(float[2,3] x) => (float[2,3] z) {dead = Add(x, x) z = Relu(x)}",
    "constant node": (
        "(float[2,3] x) => (float[2,3] z) {one = Constant<value_float = 1.0>() z = Add(x, one)}"
    ),
    "integers": "(int64[2] x, int64[2] y) => (int64[2] z) {z = Add(x, y)}",
    "data-dependent shape": "(float[2,3] x) => (int64[2,N] z) {z = NonZero(x)}",
    "no nodes": "(float[2,3] x) => (float[2,3] x) {}",
    "only a weight": "(float[3,4] w) => (float[3,4] w) {}",
    "one value under several names": "(float[2,3] x, float[3,4] w, int64[2] shape) => "
    "(float[2,3] a, float[2,3] b, float[3,2] c, float[2,3] x, float[3,4] w) "
    "{a = Identity(x) b = Identity(a) c = Reshape(b, shape)}",
    "text": "(string[2] x) => (string[2] z) {h = Identity(x) z = Identity(h)}",
    "scalar": "(float x) => (float z) {h = Relu(x) z = Relu(h)}",
    "no rows": "(float[N,3] x) => (float[N,3] z) {h = Relu(x) z = Relu(h)}",
    "booleans": "(float[2,3] x) => (float[2,3] z) {h = Greater(x, x) z = Where(h, x, x)}",
    "sequence between nodes": "(float[2,3] x) => (float[4,3] z) "
    "{s = SequenceConstruct(x, x) z = ConcatFromSequence<axis = 0>(s)}",
    "optional between nodes": (
        "(float[2,3] x) => (float[2,3] z) {o = Optional(x) z = OptionalGetElement(o)}"
    ),
}


@dataclass(frozen=True)
class Sample:
    """A model with inputs and expected outputs by name."""

    name: str
    model: Model
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    rtol: float = 1e-5


@cache
def samples() -> tuple[Sample, ...]:
    """Return small models of common operators; devices may refuse some of them."""
    random = np.random.default_rng(7)
    x, y = (random.standard_normal((2, 3), dtype=np.float32) for _ in "xy")
    w = random.standard_normal((3, 4), dtype=np.float32)
    common_values = {"x": x, "y": y, "w": w, "shape": np.array([3, 2])}
    special_values = {
        "integers": {"x": np.array([1, 2]), "y": np.array([3, 2**40])},
        "data-dependent shape": {"x": np.maximum(x, 0)},
        "text": {"x": np.array(["a", "βγ"], object)},
        "scalar": {"x": np.array(x[0, 0])},
        "no rows": {"x": x[:0]},
    }
    by_name = {
        name: _sample(name, graph, common_values | special_values.get(name, {}))
        for name, graph in _GRAPHS.items()
    }
    optional = "optional between nodes"  # ONNX's reference evaluator adds an axis
    by_name[optional] = replace(by_name[optional], outputs={"z": x})
    return tuple(by_name.values())


def typed_samples(element_type: str) -> Iterator[Sample]:
    """Yield models of one or two nodes of an element type, with numpy's results."""
    number = onnx.TensorProto.DataType.Value(element_type.upper())
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))
    wide = np.complex128 if dtype.kind == "c" else np.float64
    a, b = np.array([[1, 0], [3, 1]]).astype(dtype), np.array([[1, 1], [0, 1]]).astype(dtype)
    text = f"{element_type}[2,2]"
    rtol = 1e-5 if dtype.itemsize > 2 else 1e-2
    for node, inputs, expected in (
        ("z = Add(a, b)", {"a": a, "b": b}, a + b),
        ("h = Identity(a) z = Identity(h)", {"a": a}, a),
        ("z = MatMul(a, b)", {"a": a, "b": b}, (a.astype(wide) @ b.astype(wide)).astype(dtype)),
        ("z = Relu(a)", {"a": a}, a),
        ("z = Sqrt(a)", {"a": a}, np.sqrt(a.astype(wide)).astype(dtype)),
    ):
        ports = ", ".join(f"{text} {name}" for name in inputs)
        name = f"{node} of {element_type}"
        proto = _parse(name, f"({ports}) => ({text} z) {{{node}}}", _TYPED_HEADER)
        yield Sample(name, read_model(proto), inputs, {"z": expected}, rtol)


def foreign_operator(op_type: str) -> Model:
    """Return a model whose second node is an operator of an unknown domain."""
    graph = f"(float[2,3] x) => (float[2,3] z) {{h = Relu(x) z = unknown.domain.{op_type}(h)}}"
    return read_model(_parse("odd", graph))


def foreign_domain_alone(op_type: str) -> Model:
    """Return a model of one operator of an unknown domain, which is its only import."""
    graph = f"(float[2,3] x) => (float[2,3] z) {{z = unknown.domain.{op_type}(x)}}"
    header = '<ir_version: 8, opset_import: ["unknown.domain" : 1]>'
    return read_model(_parse("alone", graph, header))


def invalid_models() -> Iterator[Model]:
    """Yield models whose last node breaks ONNX's definition of its operator."""
    for text in (
        "(int64[2] x) => (int64[2] z) {z = Sqrt(x)}",
        "(float[2] x, double[2] y) => (z) {z = Add(x, y)}",
        '(float[2] x) => (z) {z = Add("", x)}',
        "(float[2] x) => (z) {z = Relu(x, x)}",
        "(float[2] x) => (z) {z = Relu<odd = 1>(x)}",
        "(float[2] x) => (z) {z = Identity<axis = 1>(x)}",
    ):
        yield read_model(_parse(f"the invalid {text}", text))


def _sample(name: str, graph: str, values: Mapping[str, np.ndarray]) -> Sample:
    """Return a sample with the outputs of ONNX's reference evaluator."""
    proto = _parse(name, graph)
    ports = {port.name: port for port in proto.graph.input}
    weights = {n: values[n] for n in ports if n in _WEIGHTS}
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    del proto.graph.input[:]
    proto.graph.input.extend(port for n, port in ports.items() if n not in weights)
    inputs = {port.name: values[port.name] for port in proto.graph.input}
    reference = ReferenceEvaluator(proto)
    outputs = dict(zip(reference.output_names, reference.run(None, inputs), strict=True))
    return Sample(name, read_model(proto), inputs, outputs)


def _parse(name: str, graph: str, header: str = _HEADER) -> onnx.ModelProto:
    """Parse a graph of the samples' operator sets."""
    proto = parser.parse_model(f"{header} sample {graph}")
    proto.graph.name = name
    return proto
