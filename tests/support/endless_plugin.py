"""A device that says that it runs, and does not end until it is cancelled."""

from __future__ import annotations

import threading
from typing import Any

from hetero.devices import Model, Program, RunContext, Value
from hetero.devices.null.plugin import NullPlugin


class EndlessProgram(Program):
    """Prints a line and waits."""

    def run(self, inputs: Any, context: RunContext) -> list[Value]:
        print("running", flush=True)
        while True:
            context.check_cancelled()
            threading.Event().wait(0.01)


class EndlessPlugin(NullPlugin):
    """The device ``ENDLESS``."""

    name = "ENDLESS"

    def compile(self, model: Model, config: Any) -> Program:
        return EndlessProgram()
