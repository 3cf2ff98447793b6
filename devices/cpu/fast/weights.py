"""Pass: constant weights of convolutions lie as the kernels for channels last read them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from hetero.devices.cpu.fast.conv import bias_row, copies_columns, prepare
from hetero.devices.cpu.fast.winograd import best_tile
from hetero.devices.kernels.window import sliding_window
from hetero.devices.model.model import Model, Node
from hetero.devices.transforms.rewriting import Rewrite, fused_node


def prepare_convolutions(model: Model) -> Model:
    """Return the model with planar convolutions of constant weights made those of `fast`."""
    rewrite = Rewrite(model)
    for i, node in enumerate(model.nodes):
        if rewrite.is_op(i, "Conv"):
            _prepare(rewrite, i, node)
    return rewrite.apply()


def _prepare(rewrite: Rewrite, i: int, conv: Node) -> None:
    inputs = [*conv.inputs, ""][:3]
    w, b = rewrite.constant(inputs[1]), rewrite.constant(inputs[2])
    if w is None or w.ndim != 4 or w.dtype != np.float32 or (inputs[2] and b is None):
        return
    if rewrite.model.spec(inputs[0]).element_type != "float":
        return
    if b is not None and b.shape != w.shape[:1]:  # the kernel says what is wrong
        return
    attributes: dict[str, Any] = {a.name: a for a in conv.proto.attribute}
    group = conv.attributes.get("group", 1)
    if group < 1 or w.shape[0] % group or (w.shape[1] == 1 and w.shape[0] > group > 1):
        return
    tile = 0 if group > 1 else _tile(rewrite.model, conv, w)
    attributes |= {"kernel_shape": w.shape[2:], "winograd": tile}
    strides = conv.attributes.get("strides", (1, 1))
    by_product = not tile and (w.shape[1] > 1 or group == 1)
    if b is not None and by_product and copies_columns(w.shape[2:], strides, group):
        attributes["bias_row"] = 1
        name, prepared = f"{inputs[1]}/{inputs[2]}", prepare(w, group, tile, b)
        inputs[2] = ""
    else:
        name = f"{inputs[1]}/last"
        prepared = prepare(w, group, tile, pixels=_pixels(rewrite.model, conv))
    inputs[1] = rewrite.add_constant(name, prepared)
    if b is not None and inputs[2]:
        inputs[2] = rewrite.add_constant(f"{inputs[2]}/row", bias_row(b))
    fused = fused_node("ChannelsLastConv", inputs, conv.outputs, [conv], attributes)
    rewrite.replace((i,), fused)


def _pixels(model: Model, conv: Node) -> int:
    """Return how many pixels of a row are convolved one after the other, at most."""
    shape = model.spec(conv.outputs[0]).shape or ()
    if conv.attributes.get("strides", (1,))[-1] > 1:
        return 1
    return shape[-1] if shape and isinstance(shape[-1], int) else sys.maxsize


def _tile(model: Model, conv: Node, w: np.ndarray) -> int:
    """Return the Winograd tile that suits a convolution; 0 for none."""
    a = conv.attributes
    shape = model.spec(conv.inputs[0]).shape or ()
    spatial = tuple(n for n in shape[2:] if isinstance(n, int))
    if w.shape[2:] != (3, 3) or len(spatial) != 2:
        return 0
    try:
        slides = ("auto_pad", "dilations", "pads", "strides")
        window = sliding_window(spatial, (3, 3), **{name: a[name] for name in slides if name in a})
    except ValueError:  # the kernel says what is wrong with the attributes
        return 0
    if {*window.strides, *window.dilations} != {1}:
        return 0
    return best_tile(window.output, w.shape[1], w.shape[0], w.itemsize)
