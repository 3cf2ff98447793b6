"""Transformations for the host: what its own kernels want, among those of every device."""

from __future__ import annotations

from typing import Final

from devices.cpu.passes.channels_last import prepare_convolutions
from devices.transforms import FIRST, THEN, Pass
from devices.transforms.dead_nodes import remove_dead_nodes
from devices.transforms.single_precision import compute_in_single

HOST_PASSES: Final = (
    *FIRST,
    Pass(compute_in_single),
    *THEN,
    Pass(prepare_convolutions, oldest_opset=0),
    Pass(remove_dead_nodes, oldest_opset=0),
)
