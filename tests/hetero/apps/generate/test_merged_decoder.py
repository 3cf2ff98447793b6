"""Decoders of encoder-decoder models, merged by optimum into two branches of an If."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

import hetero
from hetero.affinity.layers import find_layers
from hetero.errors import TensorNameError, TensorShapeError

#: The decoder cache holds embeddings, which the model sums; the encoder cache holds keys of the
#: source, of which it takes the mean. As with optimum, later steps return an empty encoder cache.
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
        else_branch = keys () => (float[batch, n, 4] d) { d = Identity (cross) }>
    seen = ReduceSum (present.0.decoder.key, axis)
    read = ReduceMean (cross, axis)
    both = Add (seen, read)
    all = Add (x, both)
    logits = MatMul (all, head)
}"""


def test_encoder_cache_is_computed_once():
    text = MERGED.replace(".0.", "_0_").replace("decoder.key", "decoder_key")
    proto = parse_model(text.replace("encoder.key", "encoder_key"))
    rng = np.random.default_rng(4)
    sizes = {"embedding": (30, 4), "w": (4, 4), "head": (4, 30)}
    weights = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}

    for name, array in {**weights, "axis": np.int64([1])}.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    source = rng.normal(size=(1, 5, 4)).astype(np.float32)
    source_mean = (source[0] @ weights["w"]).mean(0)
    tokens, expected = [3, 9], []
    for _ in range(6):
        x = weights["embedding"][tokens]
        expected.append(int(np.argmax((x[-1] + x.sum(0) + source_mean) @ weights["head"])))
        tokens.append(expected[-1])
    model = hetero.read_decoder(proto)
    with hetero.Core("inprocess", devices={"CPU": 2}) as core:
        pins = {"sample": "CPU.1"}
        compiled = core.compile_model(model, "HETERO:CPU.0,CPU.1", affinity=pins)
        assert (
            list(compiled.generate([3, 9], 6, inputs={"encoder_hidden_states": source})) == expected
        )
        with pytest.raises(TensorNameError, match="encoder_hidden_states"):
            compiled.generate([3, 9])
        with pytest.raises(TensorNameError, match="word"):
            compiled.generate([3, 9], inputs={"word": source})
        two_rows = np.concatenate([source, source])
        for prompts, source_rows in (([3, 9], None), ([[3], [9], [4]], two_rows)):
            with pytest.raises(TensorShapeError, match="expected one row"):
                compiled.generate(prompts, inputs={"encoder_hidden_states": source_rows})


#: A layer of the first step, which reads several tokens and sums each with those before it, and a
#: layer of later steps, which reads one token, as an exporter traces them.
FIRST = """
    present_{i}_decoder_key = Identity (x_{i})
    flat_{i} = MatMul (encoder_hidden_states, w_{i})
    size_{i} = Shape (x_{i})
    batch_{i} = Gather (size_{i}, at)
    sizes_{i} = Concat <axis = 0> (batch_{i}, open, two, two)
    heads_{i} = Reshape (flat_{i}, sizes_{i})
    present_{i}_encoder_key = Transpose <perm = [0, 2, 1, 3]> (heads_{i})
    seen_{i} = CumSum (x_{i}, axis)
    cross_{i} = ReduceMean (present_{i}_encoder_key, along)
"""
LATER = """
    present_{i}_decoder_key = Concat <axis = 1> (past_key_values_{i}_decoder_key, x_{i})
    present_{i}_encoder_key = Constant <value = float[1, 2, 1, 2] {{0.0, 0.0, 0.0, 0.0}}> ()
    seen_{i} = ReduceSum (present_{i}_decoder_key, one)
    cross_{i} = ReduceMean (past_key_values_{i}_encoder_key, along)
"""
BOTH = """
    read_{i} = Reshape (cross_{i}, row)
    both_{i} = Add (x_{i}, seen_{i})
    all_{i} = Add (both_{i}, read_{i})
    x_{i}1 = Tanh (all_{i})
"""
CONSTANTS = """
    at = Constant <value = int64[1] {0}> ()
    open = Constant <value = int64[1] {-1}> ()
    two = Constant <value = int64[1] {2}> ()
    one = Constant <value = int64[1] {1}> ()
    along = Constant <value = int64[1] {2}> ()
    row = Constant <value = int64[3] {0, 1, 4}> ()
    axis = Constant <value = int64 {1}> ()
    x_1 = Gather (embedding, input_ids)
"""
COUNT = 3


def two_branches(first: str = FIRST) -> onnx.ModelProto:
    """Build a decoder like one that optimum merged: one If, whose branches share weights."""
    numbers = ["1" * layer for layer in range(1, COUNT + 1)]
    decoders = [(f"past_key_values_{i}_decoder_key", f"present_{i}_decoder_key") for i in numbers]
    encoders = [(f"past_key_values_{i}_encoder_key", f"present_{i}_encoder_key") for i in numbers]
    cache, source = "float[batch, {}, 4] {}", "float[batch, 2, n, 2] {}"
    inputs = [cache.format("past", name) for name, _ in decoders]
    inputs += [source.format(name) for name, _ in encoders]
    outputs = ["float[batch, length, 30] logits"]
    outputs += [cache.format("total", name) for _, name in decoders]
    outputs += [source.format(name) for _, name in encoders]
    names = ", ".join(port.split()[-1] for port in outputs)

    def branch(name: str, layer: str) -> str:
        layers = "".join((layer + BOTH).format(i=i) for i in numbers)
        end = f"logits = MatMul (x_{'1' * (COUNT + 1)}, head)"
        return f"{name} () => ({', '.join(outputs)}) {{ {CONSTANTS} {layers} {end} }}"

    return parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]>
        merged (int64[batch, length] input_ids, float[batch, n, 4] encoder_hidden_states,
            {", ".join(inputs)}, bool[1] use_cache_branch) => ({", ".join(outputs)})
        {{ {names} = If (use_cache_branch) <
            then_branch = {branch("later", LATER)}, else_branch = {branch("first", first)}> }}"""
    )


@pytest.mark.parametrize("prompt", [[3], [3, 9, 14]])
def test_merged_decoder_is_split_by_layers(prompt):
    proto = two_branches()
    rng = np.random.default_rng(4)
    sizes = {"embedding": (30, 4), "head": (4, 30)} | {f"w_{'1' * n}": (4, 4) for n in (1, 2, 3)}
    weights = {n: rng.normal(scale=0.2, size=s).astype(np.float32) for n, s in sizes.items()}
    proto.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights.items())
    source = rng.normal(size=(1, 5, 4)).astype(np.float32)
    tokens, scores = [*prompt], []
    for _ in range(6):
        x = weights["embedding"][tokens]
        for layer in range(1, COUNT + 1):
            source_mean = (source[0] @ weights[f"w_{'1' * layer}"]).mean(0)
            x = np.tanh(x + x.cumsum(0) + source_mean)
        scores.append(x[-1] @ weights["head"])
        tokens.append(int(np.argmax(scores[-1])))
    model = hetero.read_decoder(proto, logits=True)
    layers = find_layers(model)
    assert len(layers) == COUNT + 1
    with hetero.Core("inprocess", devices={"CPU": 2}) as core:
        pins = {name: "CPU.1" for layer in layers[1:] for name in layer}
        compiled = core.compile_model(model, "HETERO:CPU.0,CPU.1", affinity=pins)
        generation = compiled.generate(prompt, 6, inputs={"encoder_hidden_states": source})
        for token, expected_logits in zip(generation, scores, strict=True):
            np.testing.assert_allclose(generation.logits, expected_logits, atol=1e-5)
            assert token == np.argmax(expected_logits)
        first, second = compiled.subgraphs
        assert "w_1" in first.model.constants
        assert second.model.constants.keys() >= {"w_11", "w_111", "head"}
        assert "w_1" not in second.model.constants


def test_merged_decoder_with_mixed_inputs_stays_whole():
    source = "MatMul (encoder_hidden_states"
    first = FIRST.replace("    flat", "    more_{i} = Add (encoder_hidden_states, x_{i})\n    flat")
    proto = two_branches(first.replace(source, "MatMul (more_{i}"))
    for name, shape in {"embedding": (30, 4), "head": (4, 30)}.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    for n in range(1, COUNT + 1):
        weight = numpy_helper.from_array(np.ones((4, 4), np.float32), f"w_{'1' * n}")
        proto.graph.initializer.append(weight)
    assert len(find_layers(hetero.read_decoder(proto))) == 1
