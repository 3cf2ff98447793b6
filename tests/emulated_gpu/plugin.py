"""The GPU device on emulated arrays; `EGPU`, as the installed plugin's name is taken."""

from __future__ import annotations

from typing import ClassVar

from hetero.devices.gpu.backend import DeviceBackend
from hetero.devices.gpu.plugin import GPUPlugin
from tests.emulated_gpu.backend import BACKEND


class EmulatedGPUPlugin(GPUPlugin):
    """Two devices without hardware."""

    name: ClassVar[str] = "EGPU"

    @staticmethod
    def open_backend() -> DeviceBackend:
        return BACKEND
