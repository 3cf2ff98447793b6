"""Faults of ONNX Runtime: nodes that it accepts, but computes wrongly or fails to run."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Final

import numpy as np

from hetero.devices.faults.fault import Fault, NodeView, Proof
from hetero.devices.model.integer_ranges import by_operator

_ML: Final = "ai.onnx.ml"
#: Versions before 1.25 lose weights of more bytes if only bodies read them.
_LARGEST_SAFE_NBYTES: Final = 127
#: A tree of two leaves, for proofs.
_TREE: Final = """nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2],
    nodes_featureids = [0, 0, 0], nodes_values = [0.1, 0.0, 0.0],
    nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"], nodes_truenodeids = [1, 0, 0],
    nodes_falsenodeids = [2, 0, 0]"""


#: Operators on floats that are right except for NaN, for which ONNX defines no result -> a note.
NOTES: Final = by_operator(
    {
        "GlobalMaxPool MaxPool ReduceMax ReduceMin": "NaN may not propagate",
        "ScatterElements ScatterND": "NaN does not propagate in reductions max and min",
        "ArgMax ArgMin Hardmax": "NaN counts as the extreme element only if it is the first one",
        "Clip": "a limit of NaN is ignored",
        "DynamicQuantizeLinear": "NaN and infinities, which have no scale, give other values",
        "GRU RNN": "NaN and infinities may not propagate in a first step without initial state",
        "LSTM": "NaN does not propagate if there are biases",
        "LayerNormalization": "the mean of infinite elements is NaN",
        "DFT STFT": "NaN and infinities propagate to every frequency",
        "LRN": "NaN and infinities propagate to all later channels",
        "Resize": "NaN does not propagate to samples that weight it with 0",
        "Unique": "NaN counts as equal to any element, which is then left out",
    }
)
#: Operators that sum or multiply integers as floating-point numbers.
_INTEGER_REDUCTIONS: Final = (
    "ReduceSum",
    "ReduceProd",
    "ReduceMean",
    "ReduceSumSquare",
    "ReduceL1",
    "Einsum",
)
#: Notes on one type of the first input.
NOTES_OF_TYPES: Final = {
    ("LogSoftmax", "tensor(double)"): "NaN and infinities do not propagate to other elements",
    ("Sign", "tensor(float16)"): "the sign of NaN is 0",
    **{
        (operator, f"tensor({element_type})"): (
            "interpolated integers are truncated instead of rounded"
        )
        for operator in ("Resize", "Upsample")
        for element_type in ("int8", "uint8", "int32")
    },
    **{
        (operator, "tensor(int64)"): (
            "computed in float64: results beyond 2**53 are rounded, and overflow saturates"
        )
        for operator in _INTEGER_REDUCTIONS
    },
    **{
        (operator, "tensor(int32)"): "overflow saturates instead of wrapping around"
        for operator in _INTEGER_REDUCTIONS
    },
}


def _ignores_post_transform(view: NodeView) -> bool:
    """Return whether a regressor of one target has a post_transform that is not applied."""
    applied = ("NONE",) if view.node.op_type == "SVMRegressor" else ("NONE", "PROBIT")
    has_one_target = view.attribute("targets", view.attribute("n_targets", 1)) == 1
    return has_one_target and view.attribute("post_transform", "NONE") not in applied


def _has_two_labels(view: NodeView) -> bool:
    """Return whether a classifier has two classes."""
    integers = view.attribute("classlabels_int64s", ()) or view.attribute("classlabels_ints", ())
    return len(integers or view.attribute("classlabels_strings", ())) == 2


def _scores_two_classes(view: NodeView) -> bool:
    """Return whether a tree classifier has two classes, and leaves for both."""
    return _has_two_labels(view) and len(set(view.attribute("class_ids", ()))) == 2


def _applies_probit_to_single_score(view: NodeView) -> bool:
    """Return whether a classifier of two classes applies PROBIT to the score of only one."""
    if not _has_two_labels(view) or view.attribute("post_transform", "NONE") != "PROBIT":
        return False
    if view.node.op_type == "LinearClassifier":
        return len(view.attribute("intercepts", ())) != 2
    return len(set(view.attribute("class_ids", ()))) == 1


def _may_miss_base_value(view: NodeView) -> bool:
    """Return whether a row may reach no leaf that adds to a target with a base value."""
    base_values = view.attribute("base_values", ())
    if not any(base_values):
        return False
    leaves: dict[int, set[int]] = {}
    for tree, node, mode in zip(
        view.attribute("nodes_treeids", ()),
        view.attribute("nodes_nodeids", ()),
        view.attribute("nodes_modes", ()),
        strict=False,
    ):
        if mode == "LEAF":
            leaves.setdefault(tree, set()).add(node)
    contributions: dict[tuple[int, int], set[int]] = {}
    for tree, node, target in zip(
        view.attribute("target_treeids", ()),
        view.attribute("target_nodeids", ()),
        view.attribute("target_ids", ()),
        strict=False,
    ):
        contributions.setdefault((tree, target), set()).add(node)
    return any(
        value
        and not any(nodes <= contributions.get((tree, t), set()) for tree, nodes in leaves.items())
        for t, value in enumerate(base_values)
    )


def _may_divide_lowest_by_minus_one(view: NodeView) -> bool:
    """Return whether the quotient of two 32-bit or 64-bit integers may overflow."""
    kind = view.element_type(view.node.inputs[0])
    if kind not in ("int32", "int64"):
        return False
    lowest = np.iinfo(kind).min
    for position, value in enumerate((lowest, -1)):
        constant = view.model.constants.get(view.node.inputs[position])
        if constant is not None and not (constant.array == value).any():
            return False
    # Ranges of a whole model are expensive, so constants are checked first.
    ranges = view.model.integer_ranges
    dividend, divisor = (ranges.get(name) for name in view.node.inputs[:2])
    return (dividend is None or dividend[0] <= lowest) and (
        divisor is None or divisor[0] <= -1 <= divisor[1]
    )


def _lacks_ngram_indexes(view: NodeView) -> bool:
    """Return whether a pool has more n-grams than `ngram_indexes` has numbers."""
    pool = view.attribute("pool_int64s", ()) or view.attribute("pool_strings", ())
    starts: tuple[int, ...] = (*view.attribute("ngram_counts", ()), len(pool))
    lengths = enumerate(pairwise(starts), 1)
    num_ngrams: int = sum((end - start) // n for n, (start, end) in lengths)
    num_indexes = len(view.attribute("ngram_indexes", ()))
    return num_indexes < num_ngrams


def _reads_weights_in_bodies(view: NodeView) -> bool:
    """Return whether a body reads a large weight of the outer graph."""
    return any(
        view.model.constants[value].array.nbytes > _LARGEST_SAFE_NBYTES
        for value in view.node.captures
        if value in view.model.constants
    )


def _is_real_signal(view: NodeView) -> bool:
    """Return whether the elements of a signal are known to have no imaginary part."""
    shape = view.input_shape(0)
    return shape is not None and (len(shape) == 2 or shape[-1] == 1)


#: Faults of all supported versions.
FAULTS: Final = (
    Fault(
        "Attention",
        "the output of scores is masked with the lowest float instead of -infinity",
        lambda v: (
            any(v.node.outputs[3:])
            and v.attribute("is_causal")
            and v.attribute("qk_matmul_output_mode")
        ),
        proof=Proof(
            """(float[1,1,3,4] q, float[1,1,3,4] k, float[1,1,3,4] v)
            => (float[1,1,3,4] y, float[1,1,3,3] w)
            {y, , , w = Attention<is_causal = 1, qk_matmul_output_mode = 2>(q, k, v)}""",
            opset=23,
        ),
    ),
    Fault(
        "Attention",
        "nonpad_kv_seqlen with a mask fails during the run",
        lambda v: v.input_name(3) and v.input_name(6),
        suite_case="node/test_attention_4d_diff_heads_mask4d_padded_kv",
    ),
    Fault(
        "ConvInteger",
        "a zero point per channel fails during the run",
        lambda v: v.input_name(3) and v.model.spec(v.input_name(3)).shape not in ((), (1,)),
        proof=Proof(
            """(uint8[1,1,3,3] x) => (int32[1,2,2,2] y)
            <uint8[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, uint8 z = {1}, uint8[2] zw = {1, 2}>
            {y = ConvInteger(x, w, z, zw)}""",
            {"x": [[[[1, 2, 3], [4, 5, 6], [7, 8, 9]]]]},
        ),
    ),
    Fault(
        "Div",
        "the lowest integer divided by -1 crashes the process",
        _may_divide_lowest_by_minus_one,
        proof=Proof(
            "(int64[1] x, int64[1] d) => (int64[1] y) {y = Div(x, d)}", {"x": [-(2**63)], "d": [-1]}
        ),
    ),
    Fault(
        "MaxUnpool",
        "indices are interpreted as positions in output_shape",
        lambda v: v.input_name(2),
        proof=Proof(
            """(float[1,1,2,2] x, int64[1,1,2,2] i) => (float[1,1,5,5] y)
            <int64[4] s = {1, 1, 5, 5}>
            {y = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]>(x, i, s)}""",
            {"i": [[[[5, 7], [13, 15]]]]},
        ),
    ),
    Fault(
        "Resize",
        "keep_aspect_ratio_policy is ignored with negative axes",
        lambda v: (
            v.attribute("keep_aspect_ratio_policy", "stretch") != "stretch"
            and any(axis < 0 for axis in v.attribute("axes", ()))
        ),
        proof=Proof(
            """(float[1,1,h,w] x) => (float[1,1,a,b] y) <int64[2] s = {4, 9}>
            {y = Resize<axes = [-2, -1], keep_aspect_ratio_policy = "not_larger">(x, , , s)}""",
            sizes={"h": 6, "w": 7},
            opset=19,
        ),
    ),
    Fault(
        "TfIdfVectorizer",
        "fewer ngram_indexes than n-grams crash the process",
        _lacks_ngram_indexes,
        proof=Proof(
            """(int64[2,6] x) => (float[2,3] y) {y = TfIdfVectorizer<max_gram_length = 2,
            max_skip_count = 5, min_gram_length = 1, mode = "TF", ngram_counts = [0, 4],
            ngram_indexes = [0, 1, 2], pool_int64s = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7]>(x)}""",
            {"x": [[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]]},
        ),
    ),
    Fault(
        "LinearRegressor SVMRegressor TreeEnsembleRegressor",
        "the post_transform of a single target is not applied",
        _ignores_post_transform,
        domain=_ML,
        proof=Proof(
            """(float[2,3] x) => (float[2,1] y)
            {y = ai.onnx.ml.LinearRegressor<coefficients = [0.1, 0.2, 0.3],
            post_transform = "LOGISTIC">(x)}"""
        ),
    ),
    Fault(
        "TreeEnsembleClassifier",
        "if both of two classes have leaves, its labels are 0 and 1",
        _scores_two_classes,
        domain=_ML,
        proof=Proof(
            f"""(float[5,3] x) => (int64[5] l, float[5,2] y)
            {{l, y = ai.onnx.ml.TreeEnsembleClassifier<{_TREE}, class_treeids = [0, 0],
            class_nodeids = [1, 2], class_ids = [0, 1], class_weights = [0.7, 0.6],
            classlabels_int64s = [3, 5]>(x)}}"""
        ),
    ),
    Fault(
        "LinearClassifier TreeEnsembleClassifier",
        "PROBIT with a single score of two classes leaves scores undefined",
        _applies_probit_to_single_score,
        domain=_ML,
        proof=Proof(
            """(float[5,3] x) => (int64[5] l, float[5,2] y)
            {l, y = ai.onnx.ml.LinearClassifier<coefficients = [0.1, 0.2, 0.3],
            intercepts = [0.1], classlabels_ints = [3, 5], post_transform = "PROBIT">(x)}""",
            {"x": [[i / 2, 1, 1] for i in range(5)]},
        ),
    ),
    Fault(
        "TreeEnsembleRegressor",
        "base_values are not added to targets without a leaf",
        _may_miss_base_value,
        domain=_ML,
        proof=Proof(
            f"""(float[5,3] x) => (float[5,2] y)
            {{y = ai.onnx.ml.TreeEnsembleRegressor<{_TREE}, target_treeids = [0, 0],
            target_nodeids = [1, 2], target_ids = [0, 1], target_weights = [1.0, 2.0],
            n_targets = 2, base_values = [0.5, 0.25]>(x)}}"""
        ),
    ),
)
#: Version of ONNX Runtime -> further faults of the versions before it.
_FAULTS_BEFORE: Final = {
    (1, 25): (
        Fault("If Loop Scan", "weights that only bodies read are lost", _reads_weights_in_bodies),
    ),
    (1, 31): (
        Fault(
            "Pad",
            "mode wrap repeats wrong elements if it pads by more than the size of the axis",
            lambda v: v.attribute("mode") == "wrap",
            proof=Proof(
                """(float[4,2] x) => (float[9,2] y) <int64[4] p = {5, 0, 0, 0}>
                {y = Pad<mode = "wrap">(x, p)}""",
                opset=19,
            ),
        ),
        Fault(
            "STFT",
            "a window of a complex signal is multiplied by other memory",
            lambda v: v.input_name(2) and not v.attribute("onesided", 1) and not _is_real_signal(v),
            proof=Proof(
                """(float[1,40,2] x, float[16] w) => (float[1,9,16,2] y) <int64 step = {3}>
                {y = STFT<onesided = 0>(x, step, w)}"""
            ),
        ),
    ),
}


def faults_of(version: tuple[int, int]) -> tuple[Fault, ...]:
    """Return the known faults of a version of ONNX Runtime."""
    older = (faults for before, faults in _FAULTS_BEFORE.items() if version < before)
    return (*FAULTS, *chain.from_iterable(older))
