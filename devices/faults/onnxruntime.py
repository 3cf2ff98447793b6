"""Faults of ONNX Runtime."""

from __future__ import annotations

from typing import Final

from hetero.devices.faults.fault import Fault, NodeView

#: Versions before 1.25 lose weights of more bytes if only bodies read them.
_LARGEST_SAFE_NBYTES: Final = 127


def _ignores_post_transform(view: NodeView) -> bool:
    """Return whether a regressor of one target has a post_transform that is not applied."""
    applied = ("NONE",) if view.node.op_type == "SVMRegressor" else ("NONE", "PROBIT")
    has_one_target = view.attribute("targets", view.attribute("n_targets", 1)) == 1
    return has_one_target and view.attribute("post_transform", "NONE") not in applied


def _scores_two_classes(view: NodeView) -> bool:
    """Return whether a classifier has two classes, and leaves for both."""
    labels = view.attribute("classlabels_int64s", ()) or view.attribute("classlabels_strings", ())
    return len(labels) == len(set(view.attribute("class_ids", ()))) == 2


def _reads_weights_in_bodies(view: NodeView) -> bool:
    """Return whether a body reads a large weight of the outer graph."""
    return any(
        view.model.constants[value].array.nbytes > _LARGEST_SAFE_NBYTES
        for value in view.node.captures
        if value in view.model.constants
    )


#: Each row refuses a case of ONNX's backend suite that ONNX Runtime 1.31 loads and computes wrong.
FAULTS: Final = (
    Fault(
        "Attention",
        "the output of scores is masked with the lowest float instead of -infinity",
        lambda v: (
            any(v.node.outputs[3:])
            and v.attribute("is_causal")
            and v.attribute("qk_matmul_output_mode")
        ),
    ),
    Fault(
        "Attention",
        "nonpad_kv_seqlen with a mask fails during the run",
        lambda v: v.input_name(3) and v.input_name(6),
    ),
    Fault(
        "ConvInteger",
        "a zero point per channel fails during the run",
        lambda v: v.input_name(3) and v.model.spec(v.input_name(3)).shape not in ((), (1,)),
    ),
    Fault(
        "MaxUnpool",
        "indices are interpreted as positions in output_shape",
        lambda v: v.input_name(2),
    ),
    Fault(
        "LinearRegressor SVMRegressor TreeEnsembleRegressor",
        "the post_transform of a single target is not applied",
        _ignores_post_transform,
        domain="ai.onnx.ml",
    ),
    Fault(
        "TreeEnsembleClassifier",
        "if both of two classes have leaves, its labels are 0 and 1",
        _scores_two_classes,
        domain="ai.onnx.ml",
    ),
)
#: Further faults of versions before 1.25.
FAULTS_BEFORE_1_25: Final = (
    Fault(
        "If Loop Scan",
        "versions before 1.25 lose weights that only bodies read",
        _reads_weights_in_bodies,
    ),
)
