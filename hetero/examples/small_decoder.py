"""Write a small decoder as ONNX, with random weights and the ports of an optimum export.

``python -m hetero.examples.small_decoder small.onnx``
"""

import re
import sys
from typing import Final

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.parser import parse_model

VOCABULARY: Final = 50
CONTEXT: Final = 64
WIDTH: Final = 16

_HEAD: Final = """<ir_version: 9, opset_import: ["": 18]>
decoder (int64[batch, length] input_ids, int64[batch, total] attention_mask,
    int64[batch, length] position_ids{inputs})
    => (float[batch, length, 50] logits{outputs})
{{
    words = Gather (embedding, input_ids)
    places = Gather (positions, position_ids)
    begin = Add (words, places)
    all = Shape <start = 1> (attention_mask)
    new = Shape <start = 1, end = 2> (input_ids)
    square = Concat <axis = 0> (new, all)
    every = ConstantOfShape <value = float[1] {{1.0}}> (square)
    past = Sub (all, new)
    zero = Constant <value = int64[1] {{0}}> ()
    diagonal = Squeeze (past, zero)
    causal = Trilu <upper = 0> (every, diagonal)
    given = Cast <to = 1> (attention_mask)
    between = Constant <value = int64[2] {{1, 2}}> ()
    rows = Unsqueeze (given, between)
    seen = Mul (causal, rows)
    one = Constant <value = float {{1.0}}> ()
    hidden = Sub (seen, one)
    much = Constant <value = float {{1000000000.0}}> ()
    bias = Mul (hidden, much)
    split = Constant <value = int64[4] {{0, 0, 2, 8}}> ()
    join = Constant <value = int64[3] {{0, 0, 16}}> ()
"""
_LAYER: Final = """
    q_flat_{i} = MatMul ({x}, wq_{i})
    q_rows_{i} = Reshape (q_flat_{i}, split)
    q_{i} = Transpose <perm = [0, 2, 1, 3]> (q_rows_{i})
    k_flat_{i} = MatMul ({x}, wk_{i})
    k_rows_{i} = Reshape (k_flat_{i}, split)
    k_{i} = Transpose <perm = [0, 2, 1, 3]> (k_rows_{i})
    v_flat_{i} = MatMul ({x}, wv_{i})
    v_rows_{i} = Reshape (v_flat_{i}, split)
    v_{i} = Transpose <perm = [0, 2, 1, 3]> (v_rows_{i})
    present_{i}_key = Concat <axis = 2> (past_key_values_{i}_key, k_{i})
    present_{i}_value = Concat <axis = 2> (past_key_values_{i}_value, v_{i})
    turned_{i} = Transpose <perm = [0, 1, 3, 2]> (present_{i}_key)
    scores_{i} = MatMul (q_{i}, turned_{i})
    masked_{i} = Add (scores_{i}, bias)
    weights_{i} = Softmax <axis = -1> (masked_{i})
    mixed_{i} = MatMul (weights_{i}, present_{i}_value)
    together_{i} = Transpose <perm = [0, 2, 1, 3]> (mixed_{i})
    joined_{i} = Reshape (together_{i}, join)
    out_{i} = MatMul (joined_{i}, wo_{i})
    end_{i} = Add ({x}, out_{i})
"""


def small_decoder(layers: int = 2) -> onnx.ModelProto:
    """Return a decoder with the port names of optimum; nodes are named after their outputs."""
    kinds = [(i, kind) for i in range(layers) for kind in ("key", "value")]
    cached = "float[batch, 2, {0}, 8] {1}_{2}_{3}"
    inputs = [cached.format("past", "past_key_values", *each) for each in kinds]
    outputs = [cached.format("total", "present", *each) for each in kinds]
    text = _HEAD.format(
        inputs="".join(f", {x}" for x in inputs), outputs="".join(f", {x}" for x in outputs)
    )
    text += "".join(_LAYER.format(i=i, x=f"end_{i - 1}" if i else "begin") for i in range(layers))
    text += f"    logits = MatMul (end_{layers - 1}, head)\n}}"
    model = parse_model(text)
    graph = model.graph
    for node in graph.node:
        node.name = re.sub(r"present_(\d+)_(\w+)", r"\2_\1", node.output[0])
    rng = np.random.default_rng(5)
    weights = {"embedding": (VOCABULARY, WIDTH), "positions": (CONTEXT, WIDTH)}
    weights |= {f"w{name}_{i}": (WIDTH, WIDTH) for i in range(layers) for name in "qkvo"}
    weights["head"] = (WIDTH, VOCABULARY)
    for name, shape in weights.items():
        array = rng.normal(size=shape).astype(np.float32) / (1 if "w" not in name else 3)
        graph.initializer.append(numpy_helper.from_array(array, name))
    return model


if __name__ == "__main__":
    onnx.save(small_decoder(), sys.argv[1])
