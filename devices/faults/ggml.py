"""Faults of ggml's provider: nodes that it accepts, but sometimes computes wrongly."""

from __future__ import annotations

from typing import Final

from hetero.devices.faults.fault import Fault, FaultTable, NodeView, Proof


def _shares_open_input(view: NodeView) -> bool:
    """Return whether another node reads the first input, whose sizes are not known."""
    data = view.node.inputs[0]
    return not view.model.spec(data).is_static and len(view.model.consumers[data]) > 1


#: Faults of version 0.2.0. If requests of 11 and of 15 rows alternate, about one run in eight of
#: the proof is wrong. Verification rarely finds it, because it runs few inputs.
FAULTS: Final = FaultTable(
    "ggml",
    (
        Fault(
            "Pad",
            "it may read an input after another node that reads it has overwritten it",
            _shares_open_input,
            proof=Proof(
                """(float[2,4,H,11] x) => (float[2,4,a,12] y, float[2,4,H,11] z)
                <int64[8] p = {0, 0, 1, 0, 0, 0, 0, 1}> {y = Pad(x, p) z = Relu(x)}""",
                sizes={"H": 11},
            ),
        ),
    ),
)
