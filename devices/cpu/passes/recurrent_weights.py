"""Pass: constant weights of recurrent layers lie as the kernel for few calls a step reads them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from devices.cpu.fast.prepared_recurrent import prepare
from devices.model.model import Model, Node
from devices.transforms.rewriting import Rewrite, fused_node

#: The usual activations, for each direction.
_ACTIVATIONS: Final = {
    "RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")
}  # fmt: skip


def prepare_recurrent(model: Model) -> Model:
    """Return the model with plain layers of constant weights made those of `fast`."""
    rewrite = Rewrite(model)
    for i, node in enumerate(model.nodes):
        if rewrite.is_op(i, *_ACTIVATIONS):
            _prepare(rewrite, i, node)
    return rewrite.apply()


def _prepare(rewrite: Rewrite, i: int, layer: Node) -> None:
    x, w_name, r_name, b_name, *others = [*layer.inputs, *("",) * (8 - len(layer.inputs))]
    w, r, b = (rewrite.constant(name) for name in (w_name, r_name, b_name))
    if w is None or r is None or (b_name and b is None) or others[3]:
        return
    if {w.dtype, r.dtype, np.dtype(np.float32) if b is None else b.dtype} != {np.dtype(np.float32)}:
        return
    if not _is_plain(layer.op_type, layer.attributes, w, r, b):
        return
    linear = bool(layer.attributes.get("linear_before_reset", 0))
    prepared = prepare(layer.op_type, w, r, b, linear)
    inputs = [x, *(rewrite.add_constant(f"{r_name}/ready", array) for array in prepared)]
    inputs += others[:3]
    attributes = {"cell": layer.op_type, "direction": layer.attributes.get("direction", "forward")}
    rewrite.replace(
        (i,), fused_node("PreparedRecurrent", inputs, layer.outputs, [layer], attributes)
    )


def _is_plain(
    op_type: str, attributes: dict[str, Any], w: np.ndarray, r: np.ndarray, b: np.ndarray | None
) -> bool:
    """Tell whether a layer is of the usual kind, with weights of the shapes that it says."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type]
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    if w.ndim != 3 or r.ndim != 3 or not w.size:
        return False
    hidden = r.shape[2]
    wanted = _ACTIVATIONS[op_type] * directions
    given = tuple(map(str.lower, attributes.get("activations") or wanted))
    return (
        w.shape[:2] == r.shape[:2] == (directions, gates * hidden)
        and (b is None or b.shape == (directions, 2 * gates * hidden))
        and attributes.get("hidden_size", hidden) == hidden
        and given[: len(wanted)] == wanted
        and "clip" not in attributes
        and not attributes.get("layout")
        and not attributes.get("input_forget")
    )
