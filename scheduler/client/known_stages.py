"""Stages that make the same for every request: it is made once, and loaded with its readers."""

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
from hetero.scheduler.vocabulary.placement import Placement

#: Domains whose operators, but for those that draw, are known to be functions of their inputs.
_KNOWN: Final = frozenset(["", "ai.onnx", "ai.onnx.ml", "com.microsoft"])


class KnownStages:
    """What such stages of a placement made."""

    def __init__(self) -> None:
        #: By stage, their outputs by name.
        self.made: dict[int, dict[str, Constant]] = {}

    def given(self, placement: Placement, stage: int) -> dict[str, Constant]:
        """Return a stage's inputs that are known, by name; of several routes', the last one's."""
        if not self.made:
            return {}
        return {
            name: self.made[producer][name]
            for route in placement.routes
            if stage in route.stages
            for name in placement.stages[stage].inputs
            if name in route.plan.producers
            for producer in [route.stages[route.plan.producers[name]]]
            if producer in self.made
        }

    def includes(self, placement: Placement, stage: int, model: Model) -> bool:
        """Whether a stage, given what is known, makes the same for every request."""
        given = self.given(placement, stage)
        return (
            all(spec.name in given for spec in model.inputs)  # first: known before it is read
            and bool(model.nodes)
            and all(node.domain in _KNOWN and not is_random(node.proto) for node in model.nodes)
        )

    def make(self, stage: int, make: Callable[[], Mapping[str, Value]]) -> None:
        """Have a loaded stage make its outputs, unless they are known.

        What fails, or is no tensor, each request makes.
        """
        if stage not in self.made:
            with suppress(InferenceError):
                made = make()
                if all(isinstance(value, np.ndarray) for value in made.values()):
                    self.made[stage] = {n: Constant(n, read_only(v)) for n, v in made.items()}

    def keep(self, num_stages: int) -> None:
        """Forget the stages from a number on."""
        self.made = {stage: made for stage, made in self.made.items() if stage < num_stages}
