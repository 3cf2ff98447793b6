"""Graph transformations of the CPU device: pure functions from Model to Model, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from devices.cpu.transforms.constant_folding import fold_constants
from devices.cpu.transforms.conv_activation import fuse_conv_activation
from devices.cpu.transforms.conv_batchnorm import fold_batchnorm_into_conv
from devices.cpu.transforms.dead_nodes import remove_dead_nodes
from devices.cpu.transforms.even_filters import even_filters
from devices.cpu.transforms.gelu import fuse_gelu
from devices.cpu.transforms.identities import eliminate_identities
from devices.cpu.transforms.inline_functions import inline_functions
from devices.cpu.transforms.layer_norm import fuse_layer_norm
from devices.cpu.transforms.literals import literals_to_constants
from devices.cpu.transforms.matmul_add import fuse_matmul_add
from devices.cpu.transforms.movement import merge_movements
from devices.cpu.transforms.scale_into_conv import move_scale_into_conv
from devices.cpu.transforms.scale_shift import fuse_scale_shift
from devices.model import Model

#: Dead nodes go first and last: first, so that they are no readers to the patterns.
PASSES: Final[tuple[Callable[[Model], Model], ...]] = (
    inline_functions,
    literals_to_constants,
    remove_dead_nodes,
    eliminate_identities,
    fold_constants,
    remove_dead_nodes,
    merge_movements,
    fold_batchnorm_into_conv,
    fuse_scale_shift,
    move_scale_into_conv,
    fuse_layer_norm,
    fuse_gelu,
    fuse_matmul_add,
    fuse_conv_activation,
    even_filters,
    remove_dead_nodes,
)


def transform(model: Model) -> Model:
    """Return the model as the device runs it."""
    # Shapes that the author noted for inner values may be out of date; inferred ones are not.
    model = model.replace(value_info=())
    for run in PASSES:
        model = run(model)
    return model
