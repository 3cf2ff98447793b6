"""Graph transformations for interpreting devices: pure functions from Model to Model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from hetero.devices.model.constant_nodes import lift_constant_nodes
from hetero.devices.model.model import Model
from hetero.devices.transforms.constant_folding import fold_constants
from hetero.devices.transforms.conv_batchnorm import fold_batchnorm_into_conv
from hetero.devices.transforms.fake_quantize import fuse_fake_quantize
from hetero.devices.transforms.inline_functions import inline_functions
from hetero.devices.transforms.redundant_nodes import eliminate_identities, remove_dead_nodes


class Pass(NamedTuple):
    """A transformation, and the oldest opset that it supports."""

    run: Callable[[Model], Model]
    #: Since opset 7, binary operators broadcast as in numpy, and BatchNormalization and Dropout
    #: have no attribute for the training mode.
    oldest_opset: int = 7


#: Passes before others that match patterns: patterns must not count dead nodes as readers.
CLEANUP_PASSES: Final = (
    Pass(inline_functions, oldest_opset=0),
    Pass(lift_constant_nodes, oldest_opset=0),
    Pass(remove_dead_nodes, oldest_opset=0),
)
OPTIMIZATION_PASSES: Final = (
    Pass(eliminate_identities),
    Pass(fold_constants, oldest_opset=0),
    Pass(remove_dead_nodes, oldest_opset=0),
    Pass(fuse_fake_quantize, oldest_opset=10),
    Pass(fold_batchnorm_into_conv),
    Pass(remove_dead_nodes, oldest_opset=0),
)

PASSES: Final = (*CLEANUP_PASSES, *OPTIMIZATION_PASSES)


def transform(model: Model, passes: Sequence[Pass] = PASSES) -> Model:
    """Apply passes to a model."""
    if model.value_info:  # declared shapes of inner values may be wrong; inferred shapes are not
        model = model.replace(value_info=())
    with np.errstate(all="ignore"):  # as during a run
        for step in passes:
            if model.opset_imports.get("", 0) >= step.oldest_opset:
                model = step.run(model)
    return model
