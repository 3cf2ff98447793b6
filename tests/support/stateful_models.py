"""Models with states between runs: a running sum, an LSTM by steps, a small decoder."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator

import hetero

#: State variables of `decoder`: its KV caches.
STATES = {"past.*": "present.*"}
VOCABULARY = 50
HEADS, WIDTH = 2, 8

#: y is twice the sum of all x so far; one node adds, another multiplies.
SUM = """<ir_version: 8, opset_import: ["" : 17]>
sum (float[n] x, float[n] before) => (float[n] y, float[n] after)
<float two = {2.0}> { after = Add (before, x) y = Mul (after, two) }"""


def running_sum() -> onnx.ModelProto:
    """Return `SUM`."""
    return parse_model(SUM)


def lstm(hidden: int = 5, width: int = 3) -> onnx.ModelProto:
    """Return x [steps, batch, width] -> y, with the LSTM's h and c as inputs and outputs."""
    rng = np.random.default_rng(0)
    state = [1, "batch", hidden]
    weights = {
        "w": rng.normal(size=(1, 4 * hidden, width)),
        "r": rng.normal(size=(1, 4 * hidden, hidden)),
        "b": rng.normal(size=(1, 8 * hidden)),
    }
    nodes = [
        helper.make_node(
            "LSTM",
            ["x", "w", "r", "b", "", "h0", "c0"],
            ["every", "h1", "c1"],
            "lstm",
            hidden_size=hidden,
        ),
        helper.make_node("Tanh", ["every"], ["y"], "tanh"),
    ]
    return _model(
        "lstm",
        nodes,
        {"x": (TensorProto.FLOAT, ["steps", "batch", width]), "h0": (1, state), "c0": (1, state)},
        {"y": (1, ["steps", 1, "batch", hidden]), "h1": (1, state), "c1": (1, state)},
        weights,
        17,
    )


def decoder(layers: int = 2, *, width: int = WIDTH, heads: int = HEADS) -> onnx.ModelProto:
    """Return ids [batch, 1] -> logits: a decoder whose keys and values are inputs and outputs.

    Node names begin with their layer: ``1/scores``.
    """
    rng = np.random.default_rng(1)
    size = width // heads
    past, present = ["batch", heads, "past", size], ["batch", heads, "all", size]
    inputs = {"ids": (TensorProto.INT64, ["batch", 1])}
    outputs = {"logits": (TensorProto.FLOAT, ["batch", 1, VOCABULARY])}
    weights = {"embedding": rng.normal(size=(VOCABULARY, width))}
    split = np.int64([0, 0, heads, size])
    nodes = [helper.make_node("Gather", ["embedding", "ids"], ["0/x"], "embed")]

    def add(layer: int, op: str, takes: str, gives: str, **attributes: object) -> None:
        names = [f"{layer}/{t}" if t[0] != "=" else t[1:] for t in takes.split()]
        gives = gives[1:] if gives[0] == "=" else f"{layer}/{gives}"
        nodes.append(helper.make_node(op, names, [gives], f"{layer}/{gives}", **attributes))

    for i in range(layers):
        for name in "qkvo":
            weights[f"{i}/w{name}"] = rng.normal(size=(width, width)) / width**0.5
        for name in "qkv":
            add(i, "MatMul", f"x w{name}", f"flat_{name}")
            add(i, "Reshape", f"flat_{name} =split", f"by_head_{name}")
            add(i, "Transpose", f"by_head_{name}", f"{name}", perm=[0, 2, 1, 3])
        for name, kind in (("k", "key"), ("v", "value")):
            inputs[f"past.{i}.{kind}"] = (TensorProto.FLOAT, past)
            outputs[f"present.{i}.{kind}"] = (TensorProto.FLOAT, present)
            add(i, "Concat", f"=past.{i}.{kind} {name}", f"=present.{i}.{kind}", axis=2)
        add(i, "Transpose", f"=present.{i}.key", "turned", perm=[0, 1, 3, 2])
        add(i, "MatMul", "q turned", "scores")
        add(i, "Softmax", "scores", "weights", axis=-1)
        add(i, "MatMul", f"weights =present.{i}.value", "mixed")
        add(i, "Transpose", "mixed", "together", perm=[0, 2, 1, 3])
        add(i, "Reshape", "together =join", "joined")
        add(i, "MatMul", "joined wo", "out")
        add(i, "Add", "x out", f"={i + 1}/x")
    nodes.append(helper.make_node("MatMul", [f"{layers}/x", "head"], ["logits"], "logits"))
    weights["head"] = rng.normal(size=(width, VOCABULARY))
    whole = {"split": split, "join": np.int64([0, 0, width])}
    return _model("decoder", nodes, inputs, outputs, weights, 17, whole)


def attention_decoder(*, width: int = WIDTH, heads: int = HEADS) -> onnx.ModelProto:
    """Return a decoder of one layer with opset 23's Attention."""
    rng = np.random.default_rng(2)
    past, present = (["batch", heads, length, width // heads] for length in ("past", "all"))
    nodes = [helper.make_node("Gather", ["embedding", "ids"], ["x"], "embed")]
    nodes += [helper.make_node("MatMul", ["x", f"w{n}"], [n], f"make_{n}") for n in "qkv"]
    nodes += [
        helper.make_node(
            "Attention",
            ["q", "k", "v", "", "past.key", "past.value"],
            ["mixed", "present.key", "present.value"],
            "attention",
            q_num_heads=heads,
            kv_num_heads=heads,
        ),
        helper.make_node("MatMul", ["mixed", "head"], ["logits"], "logits"),
    ]
    weights = {f"w{name}": rng.normal(size=(width, width)) for name in "qkv"}
    weights |= {
        "embedding": rng.normal(size=(VOCABULARY, width)),
        "head": rng.normal(size=(width, VOCABULARY)),
    }
    kinds = ("key", "value")
    return _model(
        "attention_decoder",
        nodes,
        {"ids": (TensorProto.INT64, ["batch", 1]), **{f"past.{k}": (1, past) for k in kinds}},
        {
            "logits": (1, ["batch", 1, VOCABULARY]),
            **{f"present.{k}": (1, present) for k in kinds},
        },
        weights,
        23,
    )


def _model(
    name: str,
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[object]]],
    outputs: dict[str, tuple[int, list[object]]],
    weights: dict[str, np.ndarray],
    opset: int,
    whole: dict[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in outputs.items()],
        [
            *(numpy_helper.from_array(np.float32(a), n) for n, a in weights.items()),
            *(numpy_helper.from_array(a, n) for n, a in (whole or {}).items()),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def generated(request: hetero.InferRequest, count: int = 12) -> list[int]:
    """Generate tokens after token 1 with a request that has states."""
    tokens = [1]
    for _ in range(count):
        tokens.append(int(np.argmax(request.infer({"ids": [tokens[-1:]]})["logits"])))
    return tokens


def expected(model: onnx.ModelProto, count: int = 12) -> list[int]:
    """Generate the same tokens with ONNX's evaluator and explicit caches."""
    names = [port.name for port in model.graph.output]
    caches = [port for port in model.graph.input if port.name.startswith("past")]
    shape = [d.dim_value for d in caches[0].type.tensor_type.shape.dim]
    past = {port.name: np.zeros((1, shape[1], 0, shape[3]), np.float32) for port in caches}
    evaluator, tokens = ReferenceEvaluator(model), [1]
    for _ in range(count):
        inputs = {"ids": np.int64([tokens[-1:]]), **past}
        outputs = dict(zip(names, evaluator.run(None, inputs), strict=True))
        past = {name.replace("past", "present"): value for name, value in past.items()}
        past = {name.replace("present", "past"): outputs[name] for name in past}
        tokens.append(int(np.argmax(outputs["logits"])))
    return tokens
