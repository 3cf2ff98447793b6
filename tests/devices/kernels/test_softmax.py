"""Softmax, LogSoftmax and Hardmax against ONNX Runtime: two semantics, before and since 13."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.comparison import assert_close
from tests.support.kernel_oracle import NARROW, cases, check, run_kernel, run_reference

RNG = np.random.default_rng(23)
X = RNG.normal(size=(2, 3, 4)).astype(np.float32)
VERSIONS = cases("Softmax", "LogSoftmax", "Hardmax")


@pytest.mark.parametrize(("op_type", "opset"), VERSIONS)
def test_of_nothing(op_type, opset):
    for shape in ((0, 3), (2, 0)):
        x = np.zeros(shape, np.float32)
        check(op_type, [x], opset=opset, expected=[x])


@pytest.mark.parametrize(("op_type", "opset"), VERSIONS)
def test_axis_out_of_range_is_refused(op_type, opset):
    with pytest.raises(IndexError, match="axis 3 is out of range for rank 3"):
        run_kernel(op_type, [X], {"axis": 3}, opset)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
def test_double_and_half(op_type):
    check(op_type, [X.astype(np.float64)], opset=13, rtol=1e-12, oracle=run_reference)
    for dtype in (np.dtype(np.float16), NARROW["bfloat16"]):
        x = X.astype(dtype)
        wide = run_kernel(op_type, [x.astype(np.float32)])[0]
        assert_close(run_kernel(op_type, [x])[0], wide.astype(dtype), 0, 0, op_type)
