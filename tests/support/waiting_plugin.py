"""The CPU device under another name; its runs wait for a file."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.model.model import Model
from hetero.devices.plugin.program import Program, RunContext, Value
from hetero.devices.plugin.properties import Config, Property, PropertyTable


class WaitingProgram(Program):
    def __init__(self, inner: Program, path: Path) -> None:
        self._inner = inner
        self._path = path

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        while not self._path.exists():
            context.check_cancelled()
            threading.Event().wait(0.005)
        return self._inner.run(inputs, context)


class WaitingPlugin(CPUPlugin):
    """The device ``WAITING``."""

    name: ClassVar[str] = "WAITING"
    properties: ClassVar[PropertyTable] = CPUPlugin.properties.extended(
        Property("WAIT_FILE", str, "", True, "The file without which nothing runs.")
    )

    def compile(self, model: Model, config: Config) -> Program:
        return WaitingProgram(super().compile(model, config), Path(config["WAIT_FILE"]))
