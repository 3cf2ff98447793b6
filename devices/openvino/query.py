"""What OpenVINO says of each node: asked with models of one node each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from devices.model.model import Model, Node
from devices.openvino.limits import Limits, checked_limits
from devices.openvino.operators import refusal, unread
from devices.openvino.question import OpenVinoQuestion, is_shown, verdicts
from devices.plugin.questions import NUMPY_TYPES, Questions, Verdicts
from devices.plugin.support import Refusal

#: The lowest operator set whose definitions OpenVINO keeps to.
LOWEST_OPSET: Final = 7
ASKED: Final = Questions("OpenVINO", verdicts)


class OpenVinoQuery(Verdicts[str]):
    """Verdicts of OpenVINO on nodes."""

    def __init__(self) -> None:
        super().__init__(is_shown, OpenVinoQuestion.of, ASKED.verdicts)

    def judge(self, model: Model, device: str, narrow: str) -> dict[str, Refusal | str]:
        """Return refusals, and notes on nodes that are taken, by node name.

        `device`: OpenVINO's; `narrow`: OV_NARROW_INTEGERS.
        """
        limits = checked_limits(model) if narrow == "CHECKED" else Limits()
        ranges = limits.ranges(model)
        found = {}
        for node in model.nodes:
            if known := _known(node, model) or refusal(node, model, narrow == "YES", ranges):
                found[node.name] = known
        heard = self.of((n for n in model.nodes if n.name not in found), model, device)
        return {**(_with_remedies(found, model) if narrow == "NO" else found), **heard}


def _with_remedies(found: Mapping[str, Refusal], model: Model) -> dict[str, Refusal]:
    """Return the refusals, those of integers with what lets OpenVINO have them."""
    told = dict(found)
    of_integers = {n: v for n, v in found.items() if v.code in ("dtype", "policy")}
    if not of_integers:
        return told
    within = checked_limits(model).ranges(model)
    for name, verdict in of_integers.items():
        node = model.nodes[model.index_of[name]]
        if _known(node, model):
            continue
        if refusal(node, model, False, within) is None:
            told[name] = replace(verdict, remedy="OV_NARROW_INTEGERS=CHECKED")
        elif refusal(node, model, True, within) is None:
            told[name] = replace(verdict, remedy="OV_NARROW_INTEGERS=YES")
    return told


def _known(node: Node, model: Model) -> Refusal | None:
    """Return a refusal that OpenVINO need not be asked for."""
    if node.domain:
        return Refusal("no_kernel", f"OpenVINO is not asked about operators of {node.domain}")
    opset = model.opset_imports.get("", LOWEST_OPSET)
    if opset < LOWEST_OPSET:
        return Refusal(
            "opset", f"OpenVINO is right from operator set {LOWEST_OPSET} on; this is {opset}"
        )
    if what := unread(node, opset):
        return Refusal("opset", f"OpenVINO does not know {what}: it came later")
    if node.captures or any(a.HasField("g") or a.graphs for a in node.proto.attribute):
        return Refusal("policy", f"{node.op_type} has a body, which OpenVINO is not asked about")
    for value in (*node.reads, *node.writes):
        spec = model.spec(value)
        unused = value not in model.consumers and all(p.name != value for p in model.outputs)
        if not spec.type and unused:
            continue  # an optional output that nobody reads
        if spec.element_type not in NUMPY_TYPES:
            kind = spec.type or "of unknown type"
            return Refusal("dtype", f"{value!r} is {kind}, which OpenVINO takes no arrays of")
        if spec.shape is None:
            return Refusal("dynamic_shape", f"{value!r} has an open number of dimensions")
    return None
