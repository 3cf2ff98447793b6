"""The CPU device under another name; a request that begins with 666 kills its process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.model.model import Model
from hetero.devices.plugin.program import Program, RunContext, Value
from hetero.devices.plugin.properties import Config


class PoisonousProgram(Program):
    def __init__(self, inner: Program) -> None:
        self._inner = inner

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        (x,) = inputs
        assert isinstance(x, np.ndarray)
        if x.flat[0] == 666:
            os._exit(9)  # like a segmentation fault in a vendor's runtime
        return self._inner.run(inputs, context)


class PoisonousPlugin(CPUPlugin):
    """The device ``POISONOUS``."""

    name: ClassVar[str] = "POISONOUS"

    def compile(self, model: Model, config: Config) -> Program:
        return PoisonousProgram(super().compile(model, config))
