"""Comparisons, boolean logic and selection against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernel_oracle import check, refuses, run_kernel
from tests.support.rows import for_each_row

TRUTH = np.array([True, False])


def test_equal_of_strings_and_booleans():
    check("Equal", [np.array(["a", "b"], object), np.array(["a", "c"], object)], opset=19)
    check("Equal", [TRUTH[:, None], TRUTH], opset=7)


@pytest.mark.parametrize("op_type", ["And", "Or", "Xor"])
def test_connectives(op_type):
    check(op_type, [TRUTH[:, None], TRUTH], opset=7)
    check(op_type, [np.zeros((0, 2), bool), TRUTH], opset=7)
    refuses(TypeError, "bool", op_type, [np.ones(2), np.ones(2)], opset=7)


def test_not():
    check("Not", [TRUTH], opset=7)
    refuses(TypeError, "bool", "Not", [np.ones(2)], opset=7)


@for_each_row("dtype", [np.float32, np.float64, np.int64, np.int32, np.uint8, object])
@for_each_row("opset", [9, 16])
def test_where(dtype, opset):
    x, y = np.array([1, 2, 3]).astype(dtype), np.array([[4], [5]]).astype(dtype)
    if dtype is object:
        x, y = x.astype(str).astype(object), y.astype(str).astype(object)
    check("Where", [np.array([True, False, True]), x, y], opset=opset)
    check("Where", [np.zeros((0, 1), bool), x, x], opset=opset)
    for condition in (True, False):
        check("Where", [np.array(condition), x[:1].reshape(()), y[:1].reshape(())], opset=opset)


def test_where_keeps_every_bit():
    # Not-a-number with a payload, and both zeros.
    x = np.array([0x7FC12345, 0x80000000], np.uint32).view(np.float32)
    y = np.array([0.0, np.inf], np.float32)
    for condition, expected in ((True, x), (False, y)):
        actual = run_kernel("Where", [np.array([condition]), x, y])[0]
        np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("shapes", [((2, 1), (3,), ()), ((), (3,), (2, 1)), ((2, 3), (), ())])
def test_where_broadcasts(shapes):
    first, second, third = shapes
    condition = np.arange(int(np.prod(first))).reshape(first) % 2 == 0
    x, y = np.full(second, 2.5, np.float32), np.full(third, -1.0, np.float32)
    check("Where", [condition, x, y], opset=16)
    check("Where", [condition, x.astype(np.int64), y.astype(np.int64)], opset=16)
