"""Decoders that read what an encoder made, with optimum's two branches for the first step."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

import hetero
from hetero.errors import TensorNameError

#: Adds up embeddings in one cache and reads the mean of what is made of the source in the other,
#: which the branch for later steps gives out empty, as optimum's does.
MERGED = """<ir_version: 9, opset_import: ["": 18]>
merged (int64[batch, length] input_ids, float[batch, n, 4] encoder_hidden_states,
    float[batch, past, 4] past_key_values.0.decoder.key,
    float[batch, n, 4] past_key_values.0.encoder.key, bool[1] use_cache_branch)
    => (float[batch, length, 30] logits, float[batch, total, 4] present.0.decoder.key,
        float[batch, n, 4] present.0.encoder.key)
{
    x = Gather (embedding, input_ids)
    present.0.decoder.key = Concat <axis = 1> (past_key_values.0.decoder.key, x)
    cross = If (use_cache_branch) <
        then_branch = later () => (float[batch, n, 4] a) {
            a = Identity (past_key_values.0.encoder.key) },
        else_branch = first () => (float[batch, n, 4] b) { b = MatMul (encoder_hidden_states, w) }>
    present.0.encoder.key = If (use_cache_branch) <
        then_branch = none () => (float[batch, z, 4] c) {
            one = Constant <value = int64[1] {1}> ()
            nil = Constant <value = int64[1] {0}> ()
            c = Slice (past_key_values.0.encoder.key, nil, nil, one) },
        else_branch = made () => (float[batch, n, 4] d) { d = Identity (cross) }>
    seen = ReduceSum (present.0.decoder.key, axis)
    read = ReduceMean (cross, axis)
    both = Add (seen, read)
    all = Add (x, both)
    logits = MatMul (all, head)
}"""


def test_what_an_encoder_made_is_read_once_and_kept() -> None:
    text = MERGED.replace(".0.", "_0_").replace("decoder.key", "decoder_key")
    proto = parse_model(text.replace("encoder.key", "encoder_key"))
    rng = np.random.default_rng(4)
    sizes = {"embedding": (30, 4), "w": (4, 4), "head": (4, 30)}
    weights = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}

    for name, array in {**weights, "axis": np.int64([1])}.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    source = rng.normal(size=(1, 5, 4)).astype(np.float32)
    read = (source[0] @ weights["w"]).mean(0)
    told, want = [3, 9], []
    for _ in range(6):
        x = weights["embedding"][told]
        want.append(int(np.argmax((x[-1] + x.sum(0) + read) @ weights["head"])))
        told.append(want[-1])
    model = hetero.read_decoder(proto)
    with hetero.Core("inprocess", devices={"CPU": 2}) as core:
        pins = {"sample": "CPU.1"}
        compiled = core.compile_model(model, "HETERO:CPU.0,CPU.1", affinity=pins)
        assert list(compiled.generate([3, 9], 6, inputs={"encoder_hidden_states": source})) == want
        with pytest.raises(TensorNameError, match="encoder_hidden_states"):
            compiled.generate([3, 9])
        with pytest.raises(TensorNameError, match="word"):
            compiled.generate([3, 9], inputs={"word": source})
