"""Pass: constant weights of convolutions lie as the kernels for channels last read them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from devices.cpu.fast.conv import bias_row, copies_columns, prepare
from devices.cpu.fast.conv_transpose import prepare_transposed
from devices.cpu.fast.winograd import best_tile
from devices.interpreter.implementations import FUSED
from devices.kernels.window import sliding_window
from devices.model.model import Model, Node
from devices.transforms.rewriting import Rewrite, fused_node


def prepare_convolutions(model: Model) -> Model:
    """Return the model with convolutions of constant weights made those of `fast`.

    Those along one axis are planar ones of a height of 1.
    """
    rewrite = Rewrite(model)
    for i, node in enumerate(model.nodes):
        if node.op_type == "FusedConv" or rewrite.is_op(i, "Conv"):
            _prepare(rewrite, i, node)
        elif rewrite.is_op(i, "ConvTranspose"):
            _prepare_transposed(rewrite, i, node)
    return rewrite.apply()


def _prepare(rewrite: Rewrite, i: int, conv: Node) -> None:
    inputs = [*conv.inputs, *("",) * (4 - len(conv.inputs))]
    w, b = rewrite.constant(inputs[1]), rewrite.constant(inputs[2])
    if w is None or w.ndim not in (3, 4) or w.dtype != np.float32 or (inputs[2] and b is None):
        return
    if rewrite.model.spec(inputs[0]).element_type != "float":
        return
    attributes: dict[str, Any] = {a.name: a for a in conv.proto.attribute}
    if w.ndim == 3:
        w, attributes = w[:, :, None], _planar(attributes)
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
    parts = [i]
    shuffle = rewrite.producer(inputs[0])
    if shuffle is not None and not tile and rewrite.sole_reader(inputs[0]) == i:
        before = rewrite.model.nodes[shuffle]
        if before.op_type == "ChannelShuffle" and before.domain == FUSED:
            parts.insert(0, shuffle)
            inputs[0] = before.inputs[0]
            attributes["shuffled"] = before.attributes["group"]
    covered = [rewrite.model.nodes[part] for part in parts]
    rewrite.replace(
        parts, fused_node("ChannelsLastConv", inputs, conv.outputs, covered, attributes)
    )


def _pixels(model: Model, conv: Node) -> int:
    """Return how many pixels of a row are convolved one after the other, at most."""
    shape = model.spec(conv.outputs[0]).shape or ()
    if conv.attributes.get("strides", (1,))[-1] > 1:
        return 1
    return shape[-1] if shape and isinstance(shape[-1], int) else sys.maxsize


def _planar(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a convolution along one axis as those of a planar one."""
    planar = dict(attributes)
    sizes = {"strides": 1, "dilations": 1, "pads": 0, "output_padding": 0, "output_shape": 1}
    for name, before in sizes.items():
        if name in attributes:
            planar[name] = tuple(n for along in attributes[name].ints for n in (before, along))
    return planar


def _prepare_transposed(rewrite: Rewrite, i: int, conv: Node) -> None:
    """Replace a transposed convolution of one group."""
    x, name, *biases = [name for name in conv.inputs if name]
    w = rewrite.constant(name)
    b = rewrite.constant(biases[0]) if biases else None
    if w is None or w.ndim not in (3, 4) or w.dtype != np.float32 or (biases and b is None):
        return
    if rewrite.model.spec(x).element_type != "float":
        return
    attributes: dict[str, Any] = {a.name: a for a in conv.proto.attribute if a.name != "group"}
    if conv.attributes.get("group", 1) != 1:
        return
    if w.ndim == 3:
        w, attributes = w[:, :, None], _planar(attributes)
    inputs = [x, rewrite.add_constant(f"{name}/last", prepare_transposed(w))]
    if b is not None:
        inputs.append(rewrite.add_constant(f"{biases[0]}/row", bias_row(b)))
    attributes["kernel_shape"] = w.shape[2:]
    replaced = fused_node("ChannelsLastConvTranspose", inputs, conv.outputs, [conv], attributes)
    rewrite.replace((i,), replaced)


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
