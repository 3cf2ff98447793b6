"""Table of the operators that ONNX Runtime runs otherwise than ONNX defines them.

The device refuses these nodes, so that another device computes them right.
"""

from __future__ import annotations

from typing import Final

import onnxruntime

from hetero.devices.plugin.faults import Fault, Use

#: Weights up to this many bytes were not lost before 1.25.
_LARGEST_SAFE_NBYTES: Final = 127
_VERSION: Final = tuple(map(int, onnxruntime.__version__.split(".")[:2]))


def _ignores_post_transform(use: Use) -> bool:
    """Return whether a regressor of one target has a post_transform that is not applied."""
    applied = ("NONE",) if use.node.op_type == "SVMRegressor" else ("NONE", "PROBIT")
    has_one_target = use.get("targets", use.get("n_targets", 1)) == 1
    return has_one_target and use.get("post_transform", "NONE") not in applied


def _scores_two_classes(use: Use) -> bool:
    """Return whether a classifier has two classes, and leaves for both."""
    labels = use.get("classlabels_int64s", ()) or use.get("classlabels_strings", ())
    return len(labels) == len(set(use.get("class_ids", ()))) == 2


def _reads_weights_in_bodies(use: Use) -> bool:
    """Return whether a body reads a weight that ONNX Runtime loses."""
    return _VERSION < (1, 25) and any(
        use.model.constants[value].array.nbytes > _LARGEST_SAFE_NBYTES
        for value in use.node.captures
        if value in use.model.constants
    )


#: Each row refuses a case of ONNX's backend suite that ONNX Runtime 1.31 loads and computes wrong.
FAULTS: Final = (
    Fault(
        "Attention",
        "the output of scores is masked with the lowest float instead of -infinity",
        lambda u: any(u.node.outputs[3:]) and u.get("is_causal") and u.get("qk_matmul_output_mode"),
    ),
    Fault(
        "Attention",
        "nonpad_kv_seqlen with a mask fails during the run",
        lambda u: u.given(3) and u.given(6),
    ),
    Fault(
        "ConvInteger",
        "a zero point per channel fails during the run",
        lambda u: u.given(3) and u.model.spec(u.given(3)).shape not in ((), (1,)),
    ),
    Fault(
        "MaxUnpool",
        "indices are interpreted as positions in output_shape",
        lambda u: u.given(2),
    ),
    Fault(
        "If Loop Scan",
        "versions before 1.25 lose weights that only bodies read",
        _reads_weights_in_bodies,
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
