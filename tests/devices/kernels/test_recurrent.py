"""Recurrent layers against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernel_oracle import check, refuses, run_kernel

RNG = np.random.default_rng(5)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STEPS, BATCH, SIZE, HIDDEN = 5, 3, 4, 6


def floats(*shape):
    return (RNG.standard_normal(shape) * 0.7).astype(np.float32)


def layer(op_type, directions, *, bias=True, lengths=None, initial=False, peepholes=False):
    """Return the inputs of a layer."""
    gates = GATES[op_type]
    inputs = [
        floats(STEPS, BATCH, SIZE),
        floats(directions, gates * HIDDEN, SIZE),
        floats(directions, gates * HIDDEN, HIDDEN),
        floats(directions, 2 * gates * HIDDEN) if bias else None,
        None if lengths is None else np.array(lengths, np.int32),
        floats(directions, BATCH, HIDDEN) if initial else None,
    ]
    if op_type == "LSTM":
        inputs.append(floats(directions, BATCH, HIDDEN) if initial else None)
        inputs.append(floats(directions, 3 * HIDDEN) if peepholes else None)
    while inputs[-1] is None:
        inputs.pop()
    return inputs


def run(op_type, inputs, attributes, opset):
    count = 3 if op_type == "LSTM" else 2
    attributes = {"hidden_size": HIDDEN} | attributes
    check(op_type, inputs, attributes, opset, 1e-4, 1e-5, n_outputs=count)


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize(("steps", "batch"), [(0, 2), (2, 0)])
def test_no_steps_and_no_batch(op_type, steps, batch):
    _, w, r, b = layer(op_type, 1)
    y, h, *_ = run_kernel(op_type, [floats(steps, batch, SIZE), w, r, b], {}, 14, n_outputs=3)
    assert y.shape == (steps, 1, batch, HIDDEN)
    np.testing.assert_array_equal(h, np.zeros((1, batch, HIDDEN)))


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_batch_first_layout_only_moves_axes(op_type, direction):
    directions = 2 if direction == "bidirectional" else 1
    inputs = layer(op_type, directions, lengths=[5, 3, 1], initial=True)
    y, *ends = run_kernel(op_type, inputs, {"direction": direction}, 14)
    expected = [y.transpose(2, 0, 1, 3), *(end.swapaxes(0, 1) for end in ends)]
    for i in (0, 5, 6):
        if i < len(inputs):
            inputs[i] = inputs[i].swapaxes(0, 1)
    check(
        op_type,
        inputs,
        {"direction": direction, "layout": 1},
        14,
        n_outputs=len(expected),
        expected=expected,
    )


@pytest.mark.parametrize("linear", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_gru_linear_before_reset(linear, direction):
    directions = 2 if direction == "bidirectional" else 1
    attributes = {"linear_before_reset": linear, "direction": direction}
    run("GRU", layer("GRU", directions), attributes, 14)


def test_lstm_peepholes():
    run("LSTM", layer("LSTM", 2, peepholes=True, initial=True), {"direction": "bidirectional"}, 14)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_lstm_clips_what_the_peepholes_add(direction):
    inputs = layer("LSTM", 1 + (direction != "forward"), peepholes=True, initial=True)
    run("LSTM", inputs, {"direction": direction, "clip": 0.2}, 14)


def test_lstm_input_forget_couples_the_gates():
    x, w, r, b = inputs = layer("LSTM", 1)
    h = c = np.zeros((BATCH, HIDDEN), np.float32)
    outputs = []
    for step in x:
        gates = step @ w[0].T + h @ r[0].T + b[0, : 4 * HIDDEN] + b[0, 4 * HIDDEN :]
        i, o = (1 / (1 + np.exp(-gates[:, k * HIDDEN : (k + 1) * HIDDEN])) for k in (0, 1))
        c = (1 - i) * c + i * np.tanh(gates[:, 3 * HIDDEN :])
        h = o * np.tanh(c)
        outputs.append(h)
    expected = [np.stack(outputs)[:, None], h[None], c[None]]
    check("LSTM", inputs, {"input_forget": 1}, 14, 1e-4, 1e-5, n_outputs=3, expected=expected)


@pytest.mark.parametrize(
    ("activation", "alpha", "beta"),
    [
        ("Relu", None, None),
        ("Affine", 0.5, 0.1),
        ("LeakyRelu", 0.2, None),
        ("Elu", 0.7, None),
        ("ThresholdedRelu", 0.1, None),
        ("ScaledTanh", 0.9, 0.8),
        ("HardSigmoid", 0.3, 0.4),
        ("Softsign", None, None),
        ("Softplus", None, None),
        ("Sigmoid", None, None),
    ],
)
def test_rnn_activations(activation, alpha, beta):
    attributes = {"activations": [activation]}
    if alpha is not None:
        attributes["activation_alpha"] = [alpha]
    if beta is not None:
        attributes["activation_beta"] = [beta]
    run("RNN", layer("RNN", 1), attributes, 14)


def test_half_width_floats_round_once():
    inputs = [a if a is None else a.astype(np.float16) for a in layer("LSTM", 1)]
    wide = run_kernel("LSTM", [a.astype(np.float32) for a in inputs], {}, 14)
    check("LSTM", inputs, {}, 14, n_outputs=3, expected=[a.astype(np.float16) for a in wide])


@pytest.mark.parametrize(
    ("change", "attributes", "message"),
    [
        ({1: floats(1, 7, SIZE)}, {}, "W: expected shape"),
        ({3: floats(1, 7)}, {}, "B: expected shape"),
        ({5: floats(1, BATCH, 2)}, {}, "initial_h"),
        ({4: np.array([9, 1, 1], np.int32)}, {}, "sequence_lens"),
        ({}, {"hidden_size": 99}, "99"),
    ],
)
def test_refuses(change, attributes, message):
    inputs = [*layer("RNN", 1), None, None]
    for position, value in change.items():
        inputs[position] = value
    refuses(ValueError, message, "RNN", inputs, attributes, 14)
