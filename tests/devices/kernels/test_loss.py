"""Losses and optimiser steps against ONNX's reference, formulas and edge values."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernel_oracle import check, refuses, run_kernel

RNG = np.random.default_rng(9)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.sampled(3, "reduction", "weighted", "ignore", "spatial", "opset")
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore", [None, 1, -7])
@pytest.mark.parametrize("spatial", [(), (4,), (2, 3)])
@pytest.mark.parametrize("opset", [13, 22])
def test_losses(reduction, weighted, ignore, spatial, opset):
    x, labels = floats(3, 5, *spatial), RNG.integers(0, 5, (3, *spatial))
    labels.flat[0] = 1 if ignore is None else ignore
    attributes = {"reduction": reduction} | ({} if ignore is None else {"ignore_index": ignore})
    weight = abs(floats(5)) + 0.1 if weighted else None
    inputs = [x, labels, weight] if weighted else [x, labels]
    expected, log_prob = _losses(x, labels, weight, ignore, reduction)
    check(
        "SoftmaxCrossEntropyLoss",
        inputs,
        attributes,
        opset,
        1e-4,
        1e-5,
        n_outputs=2,
        expected=[expected, log_prob],
    )
    check(
        "NegativeLogLikelihoodLoss",
        [log_prob, *inputs[1:]],
        attributes,
        opset,
        1e-4,
        1e-5,
        expected=[expected],
    )


def _losses(x, labels, weight, ignore, reduction):
    """Compute the loss sample by sample, as in the specification."""
    log_prob = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    loss, factors = np.zeros(labels.shape, np.float32), np.zeros(labels.shape, np.float32)
    for at in np.ndindex(labels.shape):
        c = labels[at]
        if c != ignore:
            factors[at] = 1 if weight is None else weight[c]
            loss[at] = -log_prob[(at[0], c, *at[1:])] * factors[at]
    if reduction == "sum":
        loss = np.asarray(loss.sum())
    elif reduction == "mean":
        loss = np.asarray(loss.sum() / factors.sum())
    return loss, log_prob


@pytest.mark.parametrize("op_type", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
def test_losses_refuse_labels_outside_the_classes(op_type):
    refuses(IndexError, "classes from 0 to 2", op_type, [floats(2, 3), np.array([0, 3])], {}, 13)
    with pytest.raises(IndexError, match="ignore_index 7"):
        run_kernel(op_type, [floats(2, 3), np.array([-1, 7])], {"ignore_index": 7}, 13)


def test_losses_refuse_other_shapes():
    with pytest.raises(ValueError, match="target"):
        run_kernel("NegativeLogLikelihoodLoss", [floats(2, 3), np.array([0, 1, 2])], {}, 13)
