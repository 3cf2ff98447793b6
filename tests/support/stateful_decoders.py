"""One-layer decoders with states that no Concat extends: fused attention, GRU."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.parser import parse_model

ROOM = 24

_BEGIN = """<ir_version: 10, opset_import: ["": {opset}]>
decoder (int64[batch, length] input_ids, {ports})
    => (float[batch, length, 40] logits, {states})
{{
    words = Gather (embedding, input_ids)
"""
_PROJECTED = """
    q = MatMul (words, wq)
    k = MatMul (words, wk)
    v = MatMul (words, wv)
"""
_END = """
    logits = MatMul (y, head)
}
"""


def attention() -> onnx.ModelProto:
    """Return a layer of opset 23's Attention, which extends the cache itself."""
    cache = "float[batch, 2, {0}, 8]"
    ports = [f"{cache.format('past')} past_key_values.0.{kind}" for kind in ("key", "value")]
    states = [f"{cache.format('longer')} present.0.{kind}" for kind in ("key", "value")]
    return _model(
        23,
        ports,
        states,
        _PROJECTED
        + """
    y, "present.0.key", "present.0.value" =
        Attention <is_causal = 1, q_num_heads = 2, kv_num_heads = 2>
        (q, k, v, , "past_key_values.0.key", "past_key_values.0.value")
""",
    )


def grouped(attributes: str = "", keys: str = "k = MatMul (words, wk)") -> onnx.ModelProto:
    """Return a GroupQueryAttention layer as in models of onnxruntime-genai: any head size.

    `attributes`: further attributes of the attention, such as ", local_window_size = 4".
    `keys`: the line that computes the keys; `whole` is the number of tokens.
    """
    cache = "float[batch, 2, {0}, size]"
    ports = [f"{cache.format('past')} past_key_values.0.{kind}" for kind in ("key", "value")]
    states = [f"{cache.format('longer')} present.0.{kind}" for kind in ("key", "value")]
    model = _model(
        18,
        [*ports, "int64[batch, whole] attention_mask"],
        states,
        """
    axis = Constant <value = int64[1] {1}> ()
    one = Constant <value = int64 {1}> ()
    count = ReduceSum <keepdims = 0> (attention_mask, axis)
    newest = Sub (count, one)
    lengths = Cast <to = 6> (newest)
    shape = Shape (attention_mask)
    whole = Gather (shape, one)
    total = Cast <to = 6> (whole)
"""
        + _PROJECTED.replace("k = MatMul (words, wk)", keys)
        + """
    qkv = Concat <axis = -1> (q, k, v)
    y, "present.0.key", "present.0.value" =
        com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 2{more}>
        (qkv, , , "past_key_values.0.key", "past_key_values.0.value", lengths, total)
""".replace("{more}", attributes),
    )
    model.opset_import.add(domain="com.microsoft", version=1)
    return model


def scattered() -> onnx.ModelProto:
    """Return a layer of opset 24's TensorScatter, whose cache has a fixed length."""
    cache = f"float[batch, 2, {ROOM}, 8]"
    ports = [f"{cache} past_key_values.0.{kind}" for kind in ("key", "value")]
    ports += ["int64[batch] write_indices", "int64[batch] nonpad_kv_seqlen"]
    states = [f"{cache} present.0.{kind}" for kind in ("key", "value")]
    return _model(
        24,
        ports,
        states,
        _PROJECTED
        + """
    split = Constant <value = int64[4] {0, 0, 2, 8}> ()
    join = Constant <value = int64[3] {0, 0, 16}> ()
    q_rows = Reshape (q, split)
    q_heads = Transpose <perm = [0, 2, 1, 3]> (q_rows)
    k_rows = Reshape (k, split)
    k_heads = Transpose <perm = [0, 2, 1, 3]> (k_rows)
    v_rows = Reshape (v, split)
    v_heads = Transpose <perm = [0, 2, 1, 3]> (v_rows)
    "present.0.key" = TensorScatter ("past_key_values.0.key", k_heads, write_indices)
    "present.0.value" = TensorScatter ("past_key_values.0.value", v_heads, write_indices)
    y_heads = Attention
        (q_heads, "present.0.key", "present.0.value", , , , nonpad_kv_seqlen)
    y_rows = Transpose <perm = [0, 2, 1, 3]> (y_heads)
    y = Reshape (y_rows, join)
""",
    )


def recurrent() -> onnx.ModelProto:
    """Return a GRU layer, whose state has a fixed size and is replaced in each step."""
    return _model(
        17,
        ["float[1, batch, 16] past_state.0"],
        ["float[1, batch, 16] present_state.0"],
        """
    turned = Transpose <perm = [1, 0, 2]> (words)
    all, "present_state.0" = GRU <hidden_size = 16> (turned, wx, wh, , , "past_state.0")
    one = Constant <value = int64[1] {1}> ()
    each = Squeeze (all, one)
    y = Transpose <perm = [1, 0, 2]> (each)
""",
    )


def _model(opset: int, ports: list[str], states: list[str], body: str) -> onnx.ModelProto:
    def quoted(port: str) -> str:
        kind, _, name = port.rpartition(" ")
        return f'{kind} "{name}"'

    text = _BEGIN.format(
        opset=opset, ports=", ".join(map(quoted, ports)), states=", ".join(map(quoted, states))
    )
    model = parse_model(text + body + _END)
    rng = np.random.default_rng(5)
    shapes = {"embedding": (40, 16), "head": (16, 40), "wx": (1, 48, 16), "wh": (1, 48, 16)}
    for name in ("embedding", "head", "wq", "wk", "wv", "wx", "wh"):
        if any(name in node.input for node in model.graph.node):
            weight = rng.standard_normal(shapes.get(name, (16, 16))).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(weight, name))
    return model
