"""Linear and support vector models of `ai.onnx.ml`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, combinations, pairwise

from hetero.devices.kernels.element_types import Array, Xp
from hetero.devices.kernels.ml_scores import (
    ML,
    POST_TRANSFORMS,
    Floats,
    Ints,
    Strings,
    apply_post_transform,
    both_classes,
    labels_of,
    rows_of,
)
from hetero.devices.kernels.registry import op


def _linear(xp: Xp, x: Array, coefficients: Floats, intercepts: Floats | None) -> Array:
    """Return x (N, C) times the rows of coefficients (K * C), plus the intercepts (K)."""
    x = rows_of(xp, x)
    weights = xp.asarray(coefficients, dtype=x.dtype)
    if weights.size % x.shape[1]:
        raise ValueError(
            f"coefficients: expected a multiple of {x.shape[1]} (features), got {weights.size}"
        )
    scores = xp.matmul(x, weights.reshape(-1, x.shape[1]).T)
    return scores + xp.asarray(intercepts, dtype=x.dtype) if intercepts else scores


@op("LinearRegressor", since=1, domain=ML, choices={"post_transform": POST_TRANSFORMS})
def linear_regressor(
    xp: Xp,
    x: Array,
    *,
    coefficients: Floats = (),
    intercepts: Floats | None = None,
    post_transform: str = "NONE",
    targets: int = 1,
) -> Array:
    """Return ``x @ coefficients + intercepts``, (N, targets)."""
    scores = _linear(xp, x, coefficients, intercepts)
    if scores.shape[1] != targets:
        raise ValueError(
            f"coefficients: expected {targets} rows (targets), got {scores.shape[1]} rows"
        )
    return apply_post_transform(xp, scores, post_transform)


@op("LinearClassifier", since=1, domain=ML, choices={"post_transform": POST_TRANSFORMS})
def linear_classifier(
    xp: Xp,
    x: Array,
    *,
    coefficients: Floats,
    classlabels_ints: Ints | None = None,
    classlabels_strings: Strings | None = None,
    intercepts: Floats | None = None,
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Array, Array]:
    """Return the label with the greatest score, and the scores (N, classes).

    A single row of coefficients for two labels scores the second. `multi_class` has no effect: both
    of its values have the same coefficients.
    """
    labels = labels_of(xp, classlabels_ints, classlabels_strings)
    scores = _linear(xp, x, coefficients, intercepts)
    if scores.shape[1] == 1 and labels.size == 2:
        best = (scores[:, 0] > 0).astype(xp.int64)
        negated = post_transform == "LOGISTIC"
        return labels[best], both_classes(xp, scores, post_transform, negated=negated)
    if scores.shape[1] != labels.size:
        raise ValueError(
            f"coefficients: expected {labels.size} rows (labels), got {scores.shape[1]} rows"
        )
    return labels[xp.argmax(scores, axis=1)], apply_post_transform(xp, scores, post_transform)


def _kernel(xp: Xp, x: Array, vectors: Array, kernel_type: str, params: Floats | None) -> Array:
    """Return the kernel function of each row of x and each support vector."""
    gamma, coef0, degree = params or (0.0, 0.0, 0.0)
    if kernel_type == "RBF":
        differences = x[:, None] - vectors
        return xp.exp(-gamma * xp.sum(differences * differences, axis=2))
    dots = xp.matmul(x, vectors.T)
    if kernel_type == "LINEAR":
        return dots
    if kernel_type == "POLY":
        return (gamma * dots + coef0) ** degree
    return xp.tanh(gamma * dots + coef0)  # SIGMOID


_CHOICES = {"kernel_type": ("LINEAR", "POLY", "RBF", "SIGMOID"), "post_transform": POST_TRANSFORMS}


@op("SVMRegressor", since=1, domain=ML, choices=_CHOICES)
def svm_regressor(
    xp: Xp,
    x: Array,
    *,
    coefficients: Floats = (),
    kernel_params: Floats | None = None,
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Floats = (0.0,),
    support_vectors: Floats = (),
) -> Array:
    """Return the regression (N, 1); with `one_class`, 1 for members of the class and else -1."""
    x = rows_of(xp, x)
    weights = xp.asarray(coefficients, dtype=x.dtype)
    if n_supports:
        vectors = xp.asarray(support_vectors, dtype=x.dtype).reshape(n_supports, -1)
        x = _kernel(xp, x, vectors, kernel_type, kernel_params)
    scores = (xp.matmul(x, weights) + rho[0]).reshape(-1, 1)
    if one_class:
        return xp.where(scores > 0, xp.float32(1), xp.float32(-1))
    return apply_post_transform(xp, scores, post_transform)


@op("SVMClassifier", since=1, domain=ML, choices=_CHOICES)
def svm_classifier(
    xp: Xp,
    x: Array,
    *,
    classlabels_ints: Ints | None = None,
    classlabels_strings: Strings | None = None,
    coefficients: Floats = (),
    kernel_params: Floats | None = None,
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Floats | None = None,
    prob_b: Floats | None = None,
    rho: Floats = (0.0,),
    support_vectors: Floats | None = None,
    vectors_per_class: Ints | None = None,
) -> tuple[Array, Array]:
    """Return the label with most votes, and scores.

    With `prob_a` and `prob_b` the scores are probabilities (N, classes), otherwise one per pair of
    classes. Without support vectors, the coefficients are one row per class.
    """
    labels = labels_of(xp, classlabels_ints, classlabels_strings)
    x = rows_of(xp, x)
    if not vectors_per_class:
        weights = xp.asarray(coefficients, dtype=x.dtype).reshape(labels.size, -1)
        scores = xp.matmul(x, weights.T) + rho[0]
        return labels[xp.argmax(scores, axis=1)], apply_post_transform(xp, scores, post_transform)
    count = sum(vectors_per_class)
    vectors = xp.asarray(support_vectors, dtype=x.dtype).reshape(count, -1)
    weights = xp.asarray(coefficients, dtype=x.dtype).reshape(-1, count)
    kernels = _kernel(xp, x, vectors, kernel_type, kernel_params)
    vectors_of = [slice(*ends) for ends in pairwise(accumulate(vectors_per_class, initial=0))]
    pairs = list(combinations(range(len(vectors_per_class)), 2))
    scores = xp.stack(
        [
            xp.matmul(kernels[:, vectors_of[i]], weights[j - 1, vectors_of[i]])
            + xp.matmul(kernels[:, vectors_of[j]], weights[i, vectors_of[j]])
            + rho[p]
            for p, (i, j) in enumerate(pairs)
        ],
        axis=1,
    )
    votes = xp.zeros((x.shape[0], len(vectors_per_class)), xp.int64)
    for p, (i, j) in enumerate(pairs):
        votes[:, i] += scores[:, p] > 0
        votes[:, j] += scores[:, p] <= 0
    best = labels[xp.argmax(votes, axis=1)]
    if prob_a and prob_b:
        scores = _probabilities(xp, scores, pairs, prob_a, prob_b)
    elif len(pairs) == 1 and labels.size == 2:
        negated = post_transform in ("NONE", "LOGISTIC")
        return best, both_classes(xp, scores, post_transform, negated=negated)
    return best, apply_post_transform(xp, scores, post_transform)


def _probabilities(
    xp: Xp, scores: Array, pairs: Sequence[tuple[int, int]], prob_a: Floats, prob_b: Floats
) -> Array:
    """Return class probabilities by pairwise coupling (Wu, Lin and Weng, JMLR 5, 2004)."""
    n, k = scores.shape[0], pairs[-1][1] + 1
    values = xp.asarray(prob_a, scores.dtype) * scores + xp.asarray(prob_b, scores.dtype)
    wins = xp.clip(1 / (1 + xp.exp(values)), 1e-7, 1 - 1e-7)
    r = xp.zeros((n, k, k), scores.dtype)
    for p, (i, j) in enumerate(pairs):
        r[:, i, j], r[:, j, i] = wins[:, p], 1 - wins[:, p]
    q = -r * r.swapaxes(1, 2)
    for i in range(k):
        q[:, i, i] = xp.sum(r[:, :, i] ** 2, axis=1)
    p = xp.full((n, k), 1 / k, scores.dtype)
    for _ in range(max(100, k)):
        qp = xp.matmul(q, p[:, :, None])[:, :, 0]
        pqp = xp.sum(p * qp, axis=1)
        is_unfinished = xp.max(xp.absolute(qp - pqp[:, None]), axis=1) >= 0.005 / k
        if not bool(is_unfinished.any()):
            break
        for i in range(k):
            step = xp.where(is_unfinished, (pqp - qp[:, i]) / q[:, i, i], 0)
            pqp = (pqp + step * (step * q[:, i, i] + 2 * qp[:, i])) / (1 + step) ** 2
            qp = (qp + step[:, None] * q[:, i]) / (1 + step[:, None])
            p[:, i] += step
            p = p / (1 + step[:, None])
    return p
