"""Element-wise kernels may write their result over any input of the same shape."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from devices.kernels import KERNELS, Kernel

FAMILIES = {"elementwise", "logical", "activation", "softmax"}
RNG = np.random.default_rng(26)


def donating() -> list[Any]:
    cases = []
    for kernel in KERNELS:
        function = getattr(kernel.function, "__wrapped__", kernel.function)
        if "out" not in kernel.wants or function.__module__.rpartition(".")[2] not in FAMILIES:
            continue
        required = [
            parameter
            for parameter in list(inspect.signature(kernel.function).parameters.values())[1:]
            if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
            and parameter.default is inspect.Parameter.empty
        ]
        for position in range(len(required)):
            case = f"{kernel.op_type}-{kernel.since}-{position}"
            cases.append(pytest.param(kernel, len(required), position, id=case))
    return cases


def tensor(op_type: str) -> Any:
    # Softmax along the last axis reads whole rows before it writes any.
    x = RNG.uniform(0.2, 0.9, (3, 4)).astype(np.float32)
    if op_type in ("And", "Or", "Xor", "Not"):
        return x > 0.5
    return (x * 100).astype(np.int32) if op_type.startswith("Bitwise") else x


def test_there_are_such_kernels() -> None:
    assert len(donating()) > 30


@pytest.mark.parametrize(("kernel", "count", "position"), donating())
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_result_over_an_input(kernel: Kernel, count: int, position: int) -> None:
    inputs = [tensor(kernel.op_type) for _ in range(count)]
    wanted = kernel.function(np, *(x.copy() for x in inputs))
    buffer = inputs[position]
    result = kernel.function(np, *inputs, out=buffer)
    assert result.dtype == wanted.dtype
    np.testing.assert_array_equal(result, wanted)
    if kernel.op_type != "Clip":
        assert result is buffer


@pytest.mark.parametrize(("kernel", "count", "position"), donating())
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_inputs_are_left_alone_without_one(kernel: Kernel, count: int, position: int) -> None:
    inputs = [tensor(kernel.op_type) for _ in range(count)]
    before = inputs[position].copy()
    kernel.function(np, *inputs)
    np.testing.assert_array_equal(inputs[position], before)
