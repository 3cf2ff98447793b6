"""Devices with less memory than they know: they run out of it at the compilation, or at a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.errors import DeviceMemoryError
from hetero.devices.model.model import Model
from hetero.devices.plugin.memory_traits import MemoryTraits
from hetero.devices.plugin.program import Program, RunContext, Value
from hetero.devices.plugin.properties import Config
from tests.support.products import WIDTH


class SmallPlugin(CPUPlugin):
    """The reference device with memory for three products, which it does not know."""

    name: ClassVar[str] = "SMALL"
    memory_traits: ClassVar[MemoryTraits] = MemoryTraits()
    room_nbytes: ClassVar[int] = 3 * WIDTH * WIDTH * 4

    def compile(self, model: Model, config: Config) -> Program:
        if model.weight_nbytes > self.room_nbytes:
            raise DeviceMemoryError("no room", device=self.name)
        return super().compile(model, config)


class OverfullProgram(Program):
    """Program that runs out of memory."""

    def run(self, inputs: Sequence[Value], context: RunContext) -> list[Value]:
        raise MemoryError("no room for values")


class OverfullPlugin(SmallPlugin):
    """A device that runs out of memory when it runs more than three products."""

    name: ClassVar[str] = "OVERFULL"
    limits_all: ClassVar[bool] = False

    def compile(self, model: Model, config: Config) -> Program:
        program = CPUPlugin.compile(self, model, config)
        exceeds = self.limits_all or model.weight_nbytes > self.room_nbytes
        return OverfullProgram() if exceeds else program
