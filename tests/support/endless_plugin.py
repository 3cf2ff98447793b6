"""A device that prints a line when it runs, and runs until it is cancelled."""

from __future__ import annotations

import threading
from typing import Any

from hetero.devices import Model, Program, RunContext, Value
from hetero.devices.null.plugin import NullPlugin


class EndlessProgram(Program):
    """Prints a line and waits for its cancellation."""

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
