"""The models that devices are checked with, each with inputs and the outputs that numpy gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import parser

from devices.model.element_type import element_type_name
from devices.model.model import Model
from devices.model.reader import read_model

_DOUBLED = (
    "(float[2,3] x) => (float[4,3] z) "
    "{s = SequenceConstruct(x, x) z = ConcatFromSequence<axis = 0>(s)}"
)
_HEADER = '<ir_version: 8, opset_import: ["" : 17, "nobody.knows" : 1]>'
#: The first opset that knows 4 bits.
_TYPED_HEADER = '<ir_version: 10, opset_import: ["" : 21]>'


@dataclass(frozen=True)
class Sample:
    """A model, inputs for it by name, and the outputs that the specification says come out."""

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
    relu_x = np.maximum(x, 0)

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
    yield _sample(
        "one value under several names",
        "(float[2,3] x) => (float[2,3] a, float[2,3] b, float[3,2] c, float[2,3] x, float[3,4] w) "
        "{a = Identity(x) b = Identity(a) c = Reshape(b, shape)}",
        {"x": x},
        {"a": x, "b": x, "c": x.reshape(3, 2), "x": x, "w": weight},
        w=weight,
        shape=np.array([3, 2]),
    )
    words = np.array(["a", "βγ"], object)
    for name, body, given, want in (
        ("text", "(string[2] x) => (string[2] z) {h = Identity(x) z = Identity(h)}", words, words),
        ("scalar", "(float x) => (float z) {h = Relu(x) z = Relu(h)}", x[0, 0], relu_x[0, 0]),
        ("no rows", "(float[N,3] x) => (float[N,3] z) {h = Relu(x) z = Relu(h)}", x[:0], x[:0]),
        (
            "truth values",
            "(float[2,3] x) => (float[2,3] z) {h = Greater(x, x) z = Where(h, x, x)}",
            x,
            x,
        ),
        (
            "sequence between nodes",
            _DOUBLED,
            x,
            np.concatenate([x, x]),
        ),
        (
            "optional between nodes",
            "(float[2,3] x) => (float[2,3] z) {o = Optional(x) z = OptionalGetElement(o)}",
            x,
            x,
        ),
    ):
        yield _sample(name, body, {"x": np.asarray(given)}, {"z": np.asarray(want)})


def typed_samples(element_type: str) -> Iterator[Sample]:
    """Yield one-node models of an element type, with the answers that numpy computes in it."""
    number = onnx.TensorProto.DataType.Value(element_type.upper())
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))
    wide = np.complex128 if dtype.kind == "c" else np.float64
    a, b = np.array([[1, 0], [3, 1]]).astype(dtype), np.array([[1, 1], [0, 1]]).astype(dtype)
    text = f"{element_type}[2,2]"
    rtol = 1e-5 if dtype.itemsize > 2 else 1e-2
    for node, given, want in (
        ("z = Add(a, b)", {"a": a, "b": b}, a + b),
        ("h = Identity(a) z = Identity(h)", {"a": a}, a),
        ("z = MatMul(a, b)", {"a": a, "b": b}, (a.astype(wide) @ b.astype(wide)).astype(dtype)),
        ("z = Relu(a)", {"a": a}, a),
        ("z = Sqrt(a)", {"a": a}, np.sqrt(a.astype(wide)).astype(dtype)),
    ):
        inputs = ", ".join(f"{text} {name}" for name in given)
        yield _sample(
            f"{node} of {element_type}", f"({inputs}) => ({text} z) {{{node}}}", given, {"z": want},
            rtol, _TYPED_HEADER,
        )  # fmt: skip


def unknown_operator() -> Model:
    """Return a model whose second node no device knows."""
    return foreign_operator("Odd")


def foreign_operator(op_type: str) -> Model:
    """Return a model whose second node is an operator of a domain that no device knows."""
    return read_model(
        parser.parse_model(
            f"{_HEADER} odd (float[2,3] x) => (float[2,3] z) "
            f"{{h = Relu(x) z = nobody.knows.{op_type}(h)}}"
        )
    )


def foreign_domain_alone(op_type: str) -> Model:
    """Return a model of one such operator that imports nothing but its domain."""
    return read_model(
        parser.parse_model(
            '<ir_version: 8, opset_import: ["nobody.knows" : 1]> '
            f"alone (float[2,3] x) => (float[2,3] z) {{z = nobody.knows.{op_type}(x)}}"
        )
    )


def ill_formed() -> Iterator[Model]:
    """Yield models whose last node breaks ONNX's definition of its operator."""
    for text in (
        "(int64[2] x) => (int64[2] z) {z = Sqrt(x)}",
        "(float[2] x, double[2] y) => (z) {z = Add(x, y)}",
        '(float[2] x) => (z) {z = Add("", x)}',
        "(float[2] x) => (z) {z = Relu(x, x)}",
        "(float[2] x) => (z) {z = Relu<odd = 1>(x)}",
        "(float[2] x) => (z) {z = Identity<axis = 1>(x)}",
    ):
        proto = parser.parse_model(f"{_HEADER} ill_formed {text}")
        proto.graph.name = f"the ill-formed {text}"
        yield read_model(proto)


def _sample(
    name: str,
    body: str,
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    rtol: float = 1e-5,
    header: str = _HEADER,
    **weights: np.ndarray,
) -> Sample:
    proto: onnx.ModelProto = parser.parse_model(f"{header} sample {_declared(body, weights)}")
    proto.graph.name = name
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, key) for key, array in weights.items()
    )
    kept = [port for port in proto.graph.input if port.name not in weights]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    return Sample(name, read_model(proto), inputs, outputs, rtol)


def _declared(body: str, weights: Mapping[str, np.ndarray]) -> str:
    """Return the text with weights among its inputs: the parser wants every value declared."""
    ports = [
        f"{element_type_name(w.dtype)}[{','.join(map(str, w.shape))}] {k}"
        for k, w in weights.items()
    ]
    head, rest = body.removeprefix("(").split(")", 1)
    return f"({', '.join([head] * bool(head) + ports)}){rest}"
