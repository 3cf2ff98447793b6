"""Recurrent layers in models that run several times, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from hetero.devices.errors import KernelError
from tests.support.rows import for_each_row
from tests.support.small_models import compile_cpu, make_model, run_onnxruntime

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("outputs", "starts"), [(["y", "h", "c"], True), (["", "h"], False)])
@pytest.mark.parametrize(
    ("op_type", "gates", "attributes"),
    [("RNN", 1, {}), ("GRU", 3, {}), ("GRU", 3, {"linear_before_reset": 1}), ("LSTM", 4, {})],
)
def test_recurrent_layer_in_each_run(
    op_type,
    gates,
    attributes,
    direction,
    batch,
    outputs,
    starts,
):
    directions, hidden, size = 1 + (direction == "bidirectional"), 5, 4
    constants = {
        "w": floats(directions, gates * hidden, size),
        "r": floats(directions, gates * hidden, hidden),
        "b": floats(directions, 2 * gates * hidden),
    }
    feeds = {"x": floats(6, batch, size)}
    inputs, states = ["x", "w", "r", "b"], 1 + (op_type == "LSTM")
    if starts:
        names = ["h0", "c0"][:states]
        feeds |= {name: floats(directions, batch, hidden) for name in names}
        inputs += ["", *names]
    outputs = outputs[: 1 + states]
    node = helper.make_node(
        op_type, inputs, outputs, direction=direction, hidden_size=hidden, **attributes
    )
    model = make_model([node], feeds, [name for name in outputs if name], constants)
    compiled = compile_cpu(model)
    for _ in range(3):
        feeds = {name: floats(*value.shape) for name, value in feeds.items()}
        expected = run_onnxruntime(model, feeds)
        for a, b in zip(compiled.run(list(feeds.values())), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("op_type", "gates", "attributes"),
    [
        ("RNN", 1, {}),
        ("GRU", 3, {"linear_before_reset": 1}),
        ("GRU", 3, {"linear_before_reset": 0}),
        ("LSTM", 4, {"input_forget": 0}),
    ],
)
def test_layer_over_sequences_of_several_lengths(op_type, gates, attributes):
    hidden, size, outputs = 5, 4, ["y", "h", "c"][: 2 + (op_type == "LSTM")]
    constants = {
        "w": floats(2, gates * hidden, size),
        "r": floats(2, gates * hidden, hidden),
        "b": floats(2, 2 * gates * hidden),
    }
    node = helper.make_node(
        op_type,
        ["x", "w", "r", "b", "lengths", "h0"],
        outputs,
        direction="bidirectional",
        hidden_size=hidden,
        layout=0,
        **attributes,
    )
    feeds = {"x": floats(6, 3, size), "lengths": np.array([6, 6, 6], np.int32)}
    feeds["h0"] = floats(2, 3, hidden)
    model = make_model([node], feeds, outputs, constants)
    compiled = compile_cpu(model)
    for lengths in ([6, 6, 6], [6, 4, 1], [2, 5, 3], [6, 6, 6]):
        feeds["lengths"] = np.array(lengths, np.int32)
        expected = run_onnxruntime(model, feeds)
        for a, b in zip(compiled.run(list(feeds.values())), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    for lengths in ([6, 7, 1], [-1, 2, 3]):
        with pytest.raises(KernelError, match="numbers from 0 to 6"):
            compiled.run([feeds["x"], np.array(lengths, np.int32), feeds["h0"]])


@for_each_row("direction", ["forward", "reverse", "bidirectional"])
@for_each_row("op_type, gates", [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
@for_each_row("has_bias", [False, True])
@for_each_row("steps, batch, size, hidden", [(5, 2, 4, 3), (10, 1, 16, 32)])
def test_layer_with_only_its_state_read(
    direction,
    op_type,
    gates,
    has_bias,
    steps,
    batch,
    size,
    hidden,
):
    directions = 1 + (direction == "bidirectional")
    constants = {
        "w": 0.3 * floats(directions, gates * hidden, size),
        "r": 0.3 * floats(directions, gates * hidden, hidden),
    }
    if has_bias:
        constants["b"] = floats(directions, 2 * gates * hidden)
    node = helper.make_node(
        op_type, ["x", *constants], ["", "h"], direction=direction, hidden_size=hidden
    )
    x = floats(steps, batch, size)
    model = make_model([node], {"x": x}, ["h"], constants)
    compiled = compile_cpu(model)
    compiled.run([np.zeros_like(x)])
    (expected,) = run_onnxruntime(model, {"x": x})
    np.testing.assert_allclose(compiled.run([x])[0], expected, rtol=1e-4, atol=1e-5)
