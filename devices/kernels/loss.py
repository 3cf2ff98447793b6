"""Losses: NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss."""

from __future__ import annotations

from hetero.devices.kernels.element_types import Array, Xp, in_float32, is_on_host
from hetero.devices.kernels.registry import op


def _negative_log_likelihood(
    xp: Xp,
    log_prob: Array,
    target: Array,
    weight: Array | None,
    ignore_index: int | None,
    reduction: str,
) -> Array:
    """Return the weighted, reduced negative log-probability (N, C, ...) of targets (N, ...)."""
    shape, classes = log_prob.shape, log_prob.shape[1] if log_prob.ndim > 1 else 0
    if target.shape != (shape[0], *shape[2:]):
        raise ValueError(f"target: expected shape {(shape[0], *shape[2:])}, got {target.shape}")
    if weight is not None and weight.shape != (classes,):
        raise ValueError(f"weight: expected shape {(classes,)}, got {weight.shape}")
    is_class = (target >= 0) & (target < classes)
    counts = xp.full(target.shape, True) if ignore_index is None else target != ignore_index
    if is_on_host(target) and not bool((is_class | ~counts).all()):
        raise IndexError(
            f"target: expected classes from 0 to {classes - 1}"
            + ("" if ignore_index is None else f" or ignore_index {ignore_index}")
        )
    label = xp.where(is_class, target, 0)
    loss = -xp.take_along_axis(log_prob, xp.expand_dims(label, 1), axis=1)[:, 0]
    one = log_prob.dtype.type(1)
    factor = xp.where(counts, one if weight is None else weight[label], one * 0)
    loss = xp.where(counts, loss * factor, loss.dtype.type(0))
    if reduction == "none":
        return loss
    total = xp.sum(loss)
    if reduction == "mean":
        total = total / xp.sum(factor)
    return xp.asarray(total, dtype=log_prob.dtype)


@op("NegativeLogLikelihoodLoss", since=12, choices={"reduction": ("none", "sum", "mean")})
@in_float32
def negative_log_likelihood_loss_12(
    xp: Xp,
    x: Array,
    target: Array,
    weight: Array | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Array:
    """Return the loss of log-probabilities x (N, C, ...) for target classes (N, ...)."""
    return _negative_log_likelihood(xp, x, target, weight, ignore_index, reduction)


@op("SoftmaxCrossEntropyLoss", since=12, choices={"reduction": ("none", "sum", "mean")})
@in_float32
def softmax_cross_entropy_loss_12(
    xp: Xp,
    scores: Array,
    labels: Array,
    weights: Array | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Array, Array]:
    """Return the loss of scores (N, C, ...) for target classes, and their log-softmax."""
    shifted = scores - xp.max(scores, axis=1, keepdims=True)
    log_prob = shifted - xp.log(xp.sum(xp.exp(shifted), axis=1, keepdims=True))
    loss = _negative_log_likelihood(xp, log_prob, labels, weights, ignore_index, reduction)
    return loss, log_prob
