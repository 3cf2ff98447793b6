"""Random operators: shapes, types, seeds, and moments within statistical limits."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernel_oracle import check, refuses, run_kernel

ONES = np.ones((40, 50), np.float32)


@pytest.mark.parametrize("opset", [7, 10, 12, 13, 22])
def test_dropout_infers(opset):
    inputs = [ONES] if opset < 12 else [ONES, np.array(0.7, np.float32)]
    (y,) = run_kernel("Dropout", inputs, {"ratio": 0.7} if opset < 12 else {}, opset)
    assert np.array_equal(y, ONES)
    _, mask = run_kernel("Dropout", inputs, {}, opset, n_outputs=2)
    assert mask.all()
    assert mask.dtype == (np.float32 if opset < 10 else np.bool_)


def test_dropout_trains():
    inputs = [ONES, np.array(0.25, np.float32), np.array(True)]
    y, mask = run_kernel("Dropout", inputs, {"seed": 3}, 13, n_outputs=2)
    assert mask.dtype == np.bool_
    assert np.array_equal(y, np.where(mask, np.float32(4 / 3), 0).astype(np.float32))
    # 2,000 draws: a share off by 0.05 is five standard deviations away.
    assert abs(mask.mean() - 0.75) < 0.05
    refuses(ValueError, "ratio", "Dropout", [ONES, np.array(1.0), np.array(True)])


def test_dropout_trains_with_no_ratio():
    inputs = [ONES, np.array(0.0, np.float32), np.array(True)]
    check("Dropout", inputs, {}, 13, n_outputs=2, expected=[ONES, np.ones(ONES.shape, bool)])


CASES = [
    ("RandomNormal", {"mean": 5.0, "scale": 2.0}, 5.0, 2.0),
    ("RandomUniform", {"low": 2.0, "high": 8.0}, 5.0, 6 / 12**0.5),
]


@pytest.mark.parametrize(("op_type", "attributes", "mean", "deviation"), CASES)
@pytest.mark.parametrize("opset", [7, 22])
def test_random(op_type, attributes, mean, deviation, opset):
    shared = {"shape": (40, 50), "seed": 1.0}
    (y,) = run_kernel(op_type, [], attributes | shared, opset)
    (again,) = run_kernel(op_type, [], attributes | shared, opset)
    (other,) = run_kernel(op_type, [], attributes | shared | {"seed": 1.5}, opset)
    (like,) = run_kernel(op_type + "Like", [ONES], attributes | {"seed": 1.0}, opset)
    assert (y.shape, y.dtype) == ((40, 50), np.float32)
    assert np.array_equal(y, again)
    assert np.array_equal(y, like)
    assert not np.array_equal(y, other)
    assert abs(y.mean() - mean) < 0.25
    assert abs(y.std() - deviation) < 0.2


def test_random_types_and_no_seed():
    (a,) = run_kernel("RandomNormal", [], {"shape": (9,), "dtype": 11})
    (b,) = run_kernel("RandomNormal", [], {"shape": (9,), "dtype": 11})
    assert a.dtype == np.float64
    assert not np.array_equal(a, b)
    (c,) = run_kernel("RandomUniformLike", [np.ones(3, np.int32)], {"dtype": 10})
    assert c.dtype == np.float16


@pytest.mark.parametrize("dtype", [None, 6])
def test_bernoulli(dtype):
    p = np.linspace(0, 1, 5).astype(np.float32).repeat(1000).reshape(5, 1000)
    (y,) = run_kernel(
        "Bernoulli", [p], {"seed": 2.0} | ({} if dtype is None else {"dtype": dtype}), 15
    )
    assert y.dtype == (np.float32 if dtype is None else np.int32)
    assert set(np.unique(y)) == {0, 1}
    assert np.allclose(y.mean(axis=1), [0, 0.25, 0.5, 0.75, 1], atol=0.07)


@pytest.mark.parametrize("dtype", [6, 7])
def test_multinomial(dtype):
    shares = np.array([[0.1, 0.2, 0.7], [1, 0, 0]])
    with np.errstate(divide="ignore"):
        logits = (np.log(shares) + np.array([[3.0], [-4.0]])).astype(np.float32)
    attributes = {"sample_size": 4000, "seed": 4.0, "dtype": dtype}
    (y,) = run_kernel("Multinomial", [logits], attributes, 7)
    assert (y.shape, y.dtype) == ((2, 4000), np.int32 if dtype == 6 else np.int64)
    assert not y[1].any()
    assert np.allclose(np.bincount(y[0]) / 4000, shares[0], atol=0.04)


def test_multinomial_refuses_rows_without_probability():
    for bad in (-np.inf, np.nan):
        refuses(ValueError, "rows of -inf only", "Multinomial", [np.full((2, 3), bad, np.float32)])
