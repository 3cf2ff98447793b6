"""A plugin that ends its process with a signal while it lists its devices."""

from __future__ import annotations

import os
import signal

from hetero.devices.cpu.plugin import CPUPlugin

#: The method that sends the signal; no other process has this variable.
VARIABLE = "SEGFAULT_IN"


class SegfaultPlugin(CPUPlugin):
    name = "SEGFAULT"

    def __init__(self) -> None:
        self._end_in("constructor")
        super().__init__()

    def device_ids(self) -> tuple[str, ...]:
        self._end_in("device_ids")
        return ("0",)

    def _end_in(self, method: str) -> None:
        if os.environ.get(VARIABLE) == method:
            os.kill(os.getpid(), signal.SIGSEGV)
