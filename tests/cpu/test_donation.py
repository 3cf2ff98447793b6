"""Kernels that may write over an input give the same result when they do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from devices.cpu.donation import DONORS, donated
from devices.kernels import KERNELS

NEWEST = {"": 28, "hetero": 1}


@pytest.mark.parametrize("operator", DONORS, ids="::".join)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_result_over_an_input(operator: tuple[str, str], dtype: type) -> None:
    domain, op_type = operator
    random = np.random.default_rng(0)
    for opset in {NEWEST[domain], 13} if not domain else {1}:
        kernel = KERNELS.find(domain, op_type, opset)
        assert kernel is not None
        assert "out" in kernel.wants
        for position in DONORS[operator]:
            inputs: list[Any] = [random.uniform(1, 2, (6, 5, 4)).astype(dtype) for _ in range(2)]
            if op_type == "ScaleShift":
                inputs += [random.uniform(1, 2, 5).astype(dtype) for _ in range(2)]
                del inputs[1]
            elif len(DONORS[operator]) == 1:
                del inputs[1]
            with np.errstate(all="ignore"):
                wanted = kernel.function(np, *[x.copy() for x in inputs])
                got = kernel.function(np, *inputs, out=inputs[position])
            np.testing.assert_array_equal(got, wanted)
            assert got.dtype == wanted.dtype


def test_only_what_nobody_else_holds_is_given() -> None:
    slots = [np.ones((64, 64), np.float32)]
    assert donated([slots[0]], (0,)) is slots[0]
    held = slots[0]
    assert donated([slots[0]], (0,)) is None
    del held
    view = slots[0].reshape(-1)
    assert donated([slots[0]], (0,)) is None
    slots[0] = view
    assert donated([slots[0]], (0,)) is None  # `view` is a second holder
    del view
    assert donated([slots[0]], (0,)) is slots[0]
    other = slots[0][:10]
    assert donated([slots[0]], (0,)) is None
    del other
    assert donated([slots[0], np.ones((2, 4096), np.float32)], (0,)) is None  # result is larger
    assert donated([slots[0], np.ones(4096)], (0,)) is None  # another type
    slots[0].setflags(write=False)
    assert donated([slots[0]], (0,)) is None
