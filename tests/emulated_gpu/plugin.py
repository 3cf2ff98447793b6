"""The GPU plugin on emulated arrays, named `EGPU` because `GPU` is installed."""

from __future__ import annotations

from typing import ClassVar

from hetero.devices.gpu.backend import DeviceBackend
from hetero.devices.gpu.plugin import GPUPlugin
from tests.emulated_gpu.backend import BACKEND


class EmulatedGPUPlugin(GPUPlugin):
    """Two emulated devices."""

    name: ClassVar[str] = "EGPU"

    @staticmethod
    def open_backend() -> DeviceBackend:
        return BACKEND
