"""Tree ensembles of `ai.onnx.ml`; all rows descend all trees together, level by level."""

from __future__ import annotations

from collections.abc import Callable
from operator import eq, ge, gt, le, lt, ne
from typing import Any, NamedTuple

from hetero.devices.kernels.element_types import Array, Xp, in_float32
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
from hetero.devices.kernels.registry import op, with_attributes_of

#: The comparisons of a branch, in the order of their numbers in TreeEnsemble.
_MODES = (
    "BRANCH_LEQ",
    "BRANCH_LT",
    "BRANCH_GTE",
    "BRANCH_GT",
    "BRANCH_EQ",
    "BRANCH_NEQ",
    "BRANCH_MEMBER",
)
_LEAF = len(_MODES)
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_CLASSES = {"nodes_modes": (*_MODES, "LEAF"), "post_transform": POST_TRANSFORMS}
_TARGETS = _CLASSES | {"aggregate_function": _AGGREGATES}

#: Attributes that version 3 of the older operators also accepts as tensors, as it does weights.
_TENSORS = ("base_values_as_tensor", "nodes_hitrates_as_tensor", "nodes_values_as_tensor")

#: The dict of a node, the same in every run; see `registry`.
Memo = dict[str, Any]

#: Elements of one block of leaves' weights.
_BLOCK = 1 << 20


class Trees(NamedTuple):
    """An ensemble whose nodes have consecutive numbers; a leaf is its own child."""

    #: Per node: comparison (`_LEAF` for a leaf), feature, threshold, and the two children.
    mode: Array
    feature: Array
    value: Array
    if_true: Array
    if_false: Array
    missing_is_true: Array
    roots: Array
    #: (nodes, targets): the weights that a leaf adds to targets, and a mask of its targets.
    weights: Array
    adds: Array
    #: BRANCH_MEMBER node -> the set of values for which its condition is true.
    members: dict[int, Array]


def _find_leaves(xp: Xp, x: Array, trees: Trees) -> Array:
    """Return the leaf that each row reaches in each tree, (N, trees)."""
    rows = xp.arange(x.shape[0])[:, None]
    at = xp.broadcast_to(trees.roots, (x.shape[0], trees.roots.size)).copy()
    modes = [int(mode) for mode in xp.unique(trees.mode) if mode != _LEAF]
    while bool((trees.mode[at] != _LEAF).any()):
        value, split = x[rows, trees.feature[at]], trees.value[at]
        is_true = xp.isnan(value) & trees.missing_is_true[at]
        for mode in modes:
            matches = is_true | _compare(xp, mode, value, split, at, trees)
            is_true = xp.where(trees.mode[at] == mode, matches, is_true)
        at = xp.where(is_true, trees.if_true[at], trees.if_false[at])
    return at


def _compare(xp: Xp, mode: int, value: Array, split: Array, at: Array, trees: Trees) -> Array:
    if mode == _MODES.index("BRANCH_MEMBER"):
        is_member = xp.zeros(value.shape, bool)
        for node, members in trees.members.items():
            is_member |= (at == node) & xp.isin(value, members)
        return is_member
    return (le, lt, ge, gt, eq, ne)[mode](value, split)


def _aggregate(xp: Xp, x: Array, trees: Trees, aggregate: str) -> tuple[Array, Array]:
    """Return each target's score (N, targets), and a mask of those to which a leaf added."""
    targets = trees.weights.shape[1]
    kind = xp.float64 if x.dtype == xp.float64 else trees.weights.dtype
    scores = xp.empty((x.shape[0], targets), kind)
    scored = xp.empty(scores.shape, bool)
    step = max(1, _BLOCK // max(1, targets * trees.roots.size))
    for first in range(0, x.shape[0], step):
        part = slice(first, first + step)
        leaves = _find_leaves(xp, x[part], trees)
        weights, adds = trees.weights[leaves], trees.adds[leaves]
        scored[part] = adds.any(axis=1)
        if aggregate in ("MIN", "MAX"):
            extreme, worst = (xp.min, xp.inf) if aggregate == "MIN" else (xp.max, -xp.inf)
            best = extreme(xp.where(adds, weights, worst), axis=1)
            scores[part] = xp.where(scored[part], best, 0)
        else:
            # Trees are added in ONNX Runtime's order, because scores of forests often tie.
            scores[part] = xp.cumsum(weights, axis=1, dtype=scores.dtype)[:, -1]
    if aggregate == "AVERAGE":
        scores /= trees.roots.size
    return scores, scored


def _build_once(memo: Memo, build: Callable[..., Trees], *inputs: Any, **attributes: Any) -> Trees:
    """Return the ensemble that `build` makes: built in the node's first run, then reused."""
    if "trees" not in memo:
        memo["trees"] = build(*inputs, **attributes)
    trees: Trees = memo["trees"]
    return trees


def _number_nodes(
    xp: Xp,
    n_targets: int,
    leaf_trees: Ints,
    leaf_nodes: Ints,
    targets: Ints,
    weights: Floats | None,
    tensor: Array | None,
    *,
    nodes_falsenodeids: Ints = (),
    nodes_featureids: Ints = (),
    nodes_hitrates: Floats | None = None,
    nodes_hitrates_as_tensor: Array | None = None,
    nodes_missing_value_tracks_true: Ints | None = None,
    nodes_modes: Strings = (),
    nodes_nodeids: Ints = (),
    nodes_treeids: Ints = (),
    nodes_truenodeids: Ints = (),
    nodes_values: Floats | None = None,
    nodes_values_as_tensor: Array | None = None,
) -> Trees:
    """Build an ensemble from attributes that identify nodes by tree and node id."""
    values = _numbers_or_tensor("nodes_values", nodes_values, nodes_values_as_tensor)
    if isinstance(values, tuple):
        values = xp.asarray(values, dtype=xp.float32)  # an attribute's floats have 32 bits
    place = {pair: i for i, pair in enumerate(zip(nodes_treeids, nodes_nodeids, strict=True))}
    mode = xp.asarray([(*_MODES, "LEAF").index(name) for name in nodes_modes])

    def children(ids: Ints) -> Array:
        nodes = enumerate(zip(nodes_treeids, ids, nodes_modes, strict=True))
        return xp.asarray([i if m == "LEAF" else place[tree, n] for i, (tree, n, m) in nodes])

    try:
        if_true, if_false = children(nodes_truenodeids), children(nodes_falsenodeids)
        leaf = [place[pair] for pair in zip(leaf_trees, leaf_nodes, strict=True)]
    except KeyError as error:
        raise ValueError(f"the ensemble has no node with (tree id, node id) {error}") from error
    roots: dict[int, int] = {}
    for i, tree in enumerate(nodes_treeids):
        roots.setdefault(tree, i)
    values_of_leaves = _numbers_or_tensor("weights", weights, tensor)
    sums = xp.zeros((mode.size, n_targets), xp.float32 if tensor is None else tensor.dtype)
    adds = xp.zeros(sums.shape, bool)
    at = (leaf, list(targets))
    xp.add.at(sums, at, xp.asarray(values_of_leaves, sums.dtype))
    adds[at] = True
    missing_is_true = xp.asarray(nodes_missing_value_tracks_true or (0,) * mode.size, dtype=bool)
    return Trees(
        mode,
        xp.asarray(nodes_featureids),
        values,
        if_true,
        if_false,
        missing_is_true,
        xp.asarray(list(roots.values())),
        sums,
        adds,
        {},
    )


def _numbers_or_tensor(name: str, values: Floats | None, tensor: Array | None) -> Any:
    if values and tensor is not None:
        raise ValueError(f"{name}: expected numbers or a tensor, got both")
    return values if tensor is None else tensor


@op(
    "TreeEnsembleRegressor",
    since=1,
    domain=ML,
    choices=_TARGETS,
    additions=dict.fromkeys((*_TENSORS, "target_weights_as_tensor"), 3),
)
@with_attributes_of(_number_nodes)
def tree_ensemble_regressor_1(
    xp: Xp,
    x: Array,
    *,
    n_targets: int = 1,
    target_ids: Ints = (),
    target_nodeids: Ints = (),
    target_treeids: Ints = (),
    aggregate_function: str = "SUM",
    base_values: Floats | None = None,
    base_values_as_tensor: Array | None = None,
    post_transform: str = "NONE",
    target_weights: Floats | None = None,
    target_weights_as_tensor: Array | None = None,
    memo: Memo,
    **nodes: Any,
) -> Array:
    """Return the leaves' weights, aggregated over the trees, plus the base values (N, targets)."""
    base_values = _numbers_or_tensor("base_values", base_values, base_values_as_tensor)
    trees = _build_once(
        memo,
        _number_nodes,
        xp,
        n_targets,
        target_treeids,
        target_nodeids,
        target_ids,
        target_weights,
        target_weights_as_tensor,
        **nodes,
    )
    scores, _ = _aggregate(xp, rows_of(xp, x), trees, aggregate_function)
    if base_values is not None and len(base_values):
        scores = scores + xp.asarray(base_values)
    return apply_post_transform(xp, scores, post_transform)


@op(
    "TreeEnsembleClassifier",
    since=1,
    domain=ML,
    choices=_CLASSES,
    additions=dict.fromkeys((*_TENSORS, "class_weights_as_tensor"), 3),
)
@with_attributes_of(_number_nodes)
def tree_ensemble_classifier_1(
    xp: Xp,
    x: Array,
    *,
    class_ids: Ints = (),
    class_nodeids: Ints = (),
    class_treeids: Ints = (),
    base_values: Floats | None = None,
    base_values_as_tensor: Array | None = None,
    class_weights: Floats | None = None,
    class_weights_as_tensor: Array | None = None,
    classlabels_int64s: Ints | None = None,
    classlabels_strings: Strings | None = None,
    post_transform: str = "NONE",
    memo: Memo,
    **nodes: Any,
) -> tuple[Array, Array]:
    """Return the label with the greatest sum of the leaves' weights, and the sums (N, classes).

    If there are two classes and all leaves add to one score, it is the score of the second class.
    That class is chosen if the score exceeds 0.5, or 0 if any weight is negative.
    """
    labels = labels_of(xp, classlabels_int64s, classlabels_strings)
    base_values = _numbers_or_tensor("base_values", base_values, base_values_as_tensor)
    trees = _build_once(
        memo,
        _number_nodes,
        xp,
        labels.size,
        class_treeids,
        class_nodeids,
        class_ids,
        class_weights,
        class_weights_as_tensor,
        **nodes,
    )
    scores, scored = _aggregate(xp, rows_of(xp, x), trees, "SUM")
    base = None if base_values is None or not len(base_values) else xp.asarray(base_values)
    if base is not None:
        if labels.size == 2 and (base.size == 1 or not any(class_ids)):
            # If leaves score one of two classes, its base value is the only one or the last.
            scores[:, 0] += base[-1]
        else:
            scores += base
    if labels.size == 2 and len(set(class_ids)) == 1:
        signed = bool((trees.weights < 0).any())
        score = scores[:, class_ids[0]]
        best = labels[(score > (0.0 if signed else 0.5)).astype(xp.int64)]
        if class_ids[0] == 0:
            negated = signed or post_transform == "LOGISTIC"
            return best, both_classes(xp, score[:, None], post_transform, negated=negated)
        return best, apply_post_transform(xp, scores, post_transform)
    # A class to which no leaf adds is not chosen, unless it has a base value.
    eligible = scores if base is not None else xp.where(scored, scores, -xp.inf)
    return labels[xp.argmax(eligible, axis=1)], apply_post_transform(xp, scores, post_transform)


def _number_leaves(
    xp: Xp,
    n_targets: int,
    modes: Array,
    features: Ints,
    splits: Array,
    trues: Ints,
    falses: Ints,
    true_leafs: Ints,
    false_leafs: Ints,
    roots: Ints,
    targets: Ints,
    weights: Array,
    missing: Ints | None,
    members: Array | None,
) -> Trees:
    """Build the ensemble of a TreeEnsemble, whose leaves are numbered after its branches."""
    branches, leaves = len(trues), len(targets)
    own = xp.arange(branches, branches + leaves)

    def children(ids: Ints, are_leaves: Ints) -> Array:
        return xp.concatenate([xp.asarray(ids) + branches * xp.asarray(are_leaves), own])

    mode = xp.concatenate([modes.astype(xp.int64), xp.full(leaves, _LEAF)])
    zeros = xp.zeros(leaves, xp.int64)
    missing_is_true = xp.asarray([*(missing or (0,) * branches), *(0,) * leaves], dtype=bool)
    sums = xp.zeros((mode.size, n_targets), weights.dtype)
    adds = xp.zeros(sums.shape, bool)
    sums[own, list(targets)], adds[own, list(targets)] = weights, True
    return Trees(
        mode,
        xp.concatenate([xp.asarray(features), zeros]),
        xp.concatenate([splits, zeros.astype(splits.dtype)]),
        children(trues, true_leafs),
        children(falses, false_leafs),
        missing_is_true,
        xp.asarray(roots),
        sums,
        adds,
        _members(xp, mode, members),
    )


def _members(xp: Xp, mode: Array, values: Array | None) -> dict[int, Array]:
    """Return the set of each BRANCH_MEMBER node; in `values` a NaN ends each set."""
    nodes = [int(i) for i in xp.nonzero(mode == _MODES.index("BRANCH_MEMBER"))[0]]
    sets: list[list[float]] = [[]]
    for value in () if values is None else values.tolist():
        if value != value:
            sets.append([])
        else:
            sets[-1].append(value)
    if len(sets) < len(nodes):
        raise ValueError(f"membership_values: expected {len(nodes)} sets, got {len(sets)}")
    return {node: xp.asarray(each) for node, each in zip(nodes, sets, strict=False)}


@op(
    "TreeEnsemble",
    since=5,
    domain=ML,
    choices={"aggregate_function": (0, 1, 2, 3), "post_transform": (0, 1, 2, 3, 4)},
)
@in_float32
def tree_ensemble(
    xp: Xp,
    x: Array,
    *,
    leaf_targetids: Ints,
    leaf_weights: Array,
    nodes_falseleafs: Ints,
    nodes_falsenodeids: Ints,
    nodes_featureids: Ints,
    nodes_modes: Array,
    nodes_splits: Array,
    nodes_trueleafs: Ints,
    nodes_truenodeids: Ints,
    tree_roots: Ints,
    aggregate_function: int = 1,
    membership_values: Array | None = None,
    n_targets: int = 1,
    nodes_hitrates: Array | None = None,
    nodes_missing_value_tracks_true: Ints | None = None,
    post_transform: int = 0,
    memo: Memo,
) -> Array:
    """Return the leaves' weights, aggregated over the trees (N, targets), in x's type."""
    trees = _build_once(
        memo,
        _number_leaves,
        xp,
        n_targets,
        nodes_modes,
        nodes_featureids,
        nodes_splits,
        nodes_truenodeids,
        nodes_falsenodeids,
        nodes_trueleafs,
        nodes_falseleafs,
        tree_roots,
        leaf_targetids,
        leaf_weights,
        nodes_missing_value_tracks_true,
        membership_values,
    )
    scores, _ = _aggregate(xp, rows_of(xp, x), trees, _AGGREGATES[aggregate_function])
    return apply_post_transform(xp, scores, _TRANSFORMS[post_transform], x.dtype)
