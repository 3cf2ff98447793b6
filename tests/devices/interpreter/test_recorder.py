"""The recorder: what a kernel does to stand-ins for arrays, done again to other elements."""

from __future__ import annotations

import logging
import tracemalloc
from typing import Any

import numpy as np
import pytest
from onnx import helper

from hetero.devices.interpreter import recorder
from hetero.devices.interpreter.calls import Scratch
from hetero.devices.interpreter.stand_in import CannotRecord, Tape
from hetero.devices.interpreter.tape import Recording
from hetero.devices.kernels import KERNELS
from tests.support.small_models import compile_cpu, make_model, run_onnxruntime

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def record(kernel: Any, x: np.ndarray, y: np.ndarray) -> Recording | None:
    return recorder._record(kernel, [x], [True], [y])


@pytest.mark.parametrize("shape", [(3, 5), (2, 16, 70, 90), (9, 40, 300), (700, 900)])
@pytest.mark.parametrize(
    "op_type", ["Gelu", "LogSoftmax", "Mish", "Selu", "Softmax", "Softplus", "Swish"]
)
@pytest.mark.parametrize("channels_last", [False, True])
def test_what_is_recorded_gives_what_the_kernel_gives_of_other_elements(
    op_type: str, shape: tuple[int, ...], channels_last: bool
) -> None:
    kernel = KERNELS.find("", op_type, 24)
    assert kernel is not None
    x = floats(*shape)
    if channels_last:
        x = np.moveaxis(np.moveaxis(x, 1, -1).copy(), -1, 1)
    y = np.empty_like(kernel.function(np, x))
    recording = record(kernel.function, x, y)
    assert recording is not None
    calls = recording.calls(Scratch(), [y], [x])
    assert calls is not None
    for _ in range(2):
        x[...] = floats(*shape)
        for call in calls:
            call()
        np.testing.assert_array_equal(y, kernel.function(np, x))


def in_order(xp: Any, x: Any) -> Any:
    return xp.ascontiguousarray(x)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_copy_in_order_is_recorded(transposed: bool) -> None:
    x = floats(3, 4).T if transposed else floats(4, 3)
    assert record(in_order, x, np.empty((4, 3), np.float32)) is not None


def test_both_directions_of_a_small_recurrent_layer_are_recorded_as_one() -> None:
    kernel = KERNELS.find("", "LSTM", 22)
    assert kernel is not None
    steps, hidden = 20, 8
    x, counts = floats(steps, 1, 4), []
    for directions, name in ((1, "forward"), (2, "bidirectional")):
        weights = floats(directions, 4 * hidden, 4), floats(directions, 4 * hidden, hidden)
        y, *_ = kernel.function(np, x, *weights, direction=name)

        def layer(xp: Any, x: Any, weights: Any = weights, name: str = name) -> Any:
            return kernel.function(xp, x, *weights, direction=name)[0]

        recording = record(layer, x, y)
        assert recording is not None
        counts.append(len(recording.steps))
    assert counts[1] < 1.2 * counts[0]


def by_an_element(xp: Any, x: Any) -> Any:
    return x + 1 if x[0] > 0 else x - 1


def by_all_elements(xp: Any, x: Any) -> Any:
    return x / float(xp.sum(x))


def through_an_array(xp: Any, x: Any) -> Any:
    return np.asarray(x) + 1


def by_a_constant_that_is_written_to(xp: Any, x: Any) -> Any:
    y = xp.ones(x.shape, x.dtype)
    y += x
    return y


@pytest.mark.parametrize(
    "kernel",
    [
        by_an_element,
        by_all_elements,
        through_an_array,
        by_a_constant_that_is_written_to,
    ],
)
def test_a_kernel_that_looks_at_elements_is_not_recorded(kernel: Any) -> None:
    x = floats(4)
    assert record(kernel, x, kernel(np, x)) is None


def test_positions_that_go_together_are_not_taken_as_all_pairs() -> None:
    """Of the leaves of a large tree ensemble all pairs fill the memory."""
    made = Tape([]).made(np.zeros((3000, 2)))
    tracemalloc.start()
    with pytest.raises(CannotRecord):
        made[np.arange(3000), [0] * 3000]
    _, most_nbytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_nbytes < 3000**2


def test_what_does_not_give_what_the_kernel_gave_stays_unbound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder, "_gives", lambda *_: False)
    x = floats(3, 4)
    model = make_model([helper.make_node("Exp", ["x"], ["y"], name="power")], {"x": x}, ["y"])
    compiled = compile_cpu(model)
    with caplog.at_level(logging.WARNING):
        compiled.run([x])
    (said,) = caplog.messages
    assert "'power' (Exp) is not bound" in said
    for _ in range(2):
        x = floats(3, 4)
        (wanted,) = run_onnxruntime(model, {"x": x})
        np.testing.assert_allclose(compiled.run([x])[0], wanted, rtol=1e-5)
