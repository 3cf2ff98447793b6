"""Constant folding at deployment: stages without request inputs run once.

Their outputs are loaded as constants with the stages that read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import numpy as np

from hetero.devices.errors import InferenceError
from hetero.devices.model.attributes import is_random
from hetero.devices.model.model import Constant, Model
from hetero.devices.plugin.program import Value
from hetero.scheduler.channels.memory import read_only
from hetero.scheduler.types.placement import Placement

#: Domains whose operators, except for the random ones, are pure functions of their inputs.
_KNOWN: Final = frozenset(["", "ai.onnx", "ai.onnx.ml", "com.microsoft"])


class ConstantStages:
    """Outputs of the constant stages of a placement."""

    def __init__(self) -> None:
        #: By stage, the outputs by name.
        self.outputs: dict[int, dict[str, Constant]] = {}

    def inputs_of(self, placement: Placement, stage: int) -> dict[str, Constant]:
        """Return a stage's constant inputs by name; of several routes, those of the last one."""
        if not self.outputs:
            return {}
        return {
            name: self.outputs[producer][name]
            for route in placement.routes
            if stage in route.stages
            for name in placement.stages[stage].inputs
            if name in route.plan.producers
            for producer in [route.stages[route.plan.producers[name]]]
            if producer in self.outputs
        }

    def includes(self, placement: Placement, stage: int, model: Model) -> bool:
        """Return whether all inputs of a stage are constant and its operators deterministic."""
        constants = self.inputs_of(placement, stage)
        return (
            # The inputs come first: checking them does not read the model's nodes.
            all(spec.name in constants for spec in model.inputs)
            and bool(model.nodes)
            and all(node.domain in _KNOWN and not is_random(node.proto) for node in model.nodes)
        )

    def make(self, stage: int, run: Callable[[], Mapping[str, Value]]) -> None:
        """Run a loaded constant stage, unless its outputs are stored already.

        If the run fails or an output is not a tensor, each request runs the stage instead.
        """
        if stage not in self.outputs:
            with suppress(InferenceError):
                outputs = run()
                if all(isinstance(value, np.ndarray) for value in outputs.values()):
                    self.outputs[stage] = {n: Constant(n, read_only(v)) for n, v in outputs.items()}

    def keep(self, num_stages: int) -> None:
        """Drop the outputs of stages numbered `num_stages` or higher."""
        self.outputs = {
            stage: outputs for stage, outputs in self.outputs.items() if stage < num_stages
        }
