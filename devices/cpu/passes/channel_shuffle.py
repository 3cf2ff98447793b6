"""Pass: Reshape into groups, Transpose and Reshape back shuffle channels: one ChannelShuffle."""

from __future__ import annotations

from devices.model.model import Model
from devices.transforms.rewriting import Rewrite, fused_node


def fuse_channel_shuffle(model: Model) -> Model:
    """Return the model with shuffles of the channels of planes as one operator."""
    rewrite = Rewrite(model)
    for i, node in enumerate(model.nodes):
        if rewrite.is_op(i, "Transpose") and node.attributes.get("perm") == (0, 2, 1, 3, 4):
            _fuse(rewrite, i)
    return rewrite.apply()


def _fuse(rewrite: Rewrite, i: int) -> None:
    model = rewrite.model
    node = model.nodes[i]
    before, after = rewrite.producer(node.inputs[0]), rewrite.sole_reader(node.outputs[0])
    if before is None or after is None or rewrite.sole_reader(node.inputs[0]) != i:
        return
    if not rewrite.is_op(before, "Reshape") or not rewrite.is_op(after, "Reshape"):
        return
    first, last = model.nodes[before], model.nodes[after]
    whole, grouped = (model.spec(name).shape for name in (first.inputs[0], node.inputs[0]))
    if whole is None or grouped is None or None in whole or len(whole) != 4:
        return
    group, each = grouped[1:3]
    if whole != model.spec(last.outputs[0]).shape or group is None or each is None:
        return
    if grouped != (whole[0], group, each, *whole[2:]):
        return
    parts = [first, node, last]
    shuffle = fused_node("ChannelShuffle", first.inputs[:1], last.outputs, parts, {"group": group})
    rewrite.replace((before, i, after), shuffle)
