"""Array backend of CuPy, for CUDA devices."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cupy
import numpy as np

from hetero.devices.gpu.backend import DeviceBackend


class CupyBackend(DeviceBackend):
    """CUDA devices, with the driver's numbers as ids."""

    def __init__(self) -> None:
        super().__init__("cupy", cupy)
        #: Streams by device, one set per thread: concurrent requests use separate streams, and
        #: CuPy's pool reuses memory only within the stream that freed it.
        self._thread = threading.local()

    def to_device(self, array: np.ndarray) -> Any:
        """Return a copy of a host array on the current device."""
        return cupy.asarray(array)

    def to_host(self, array: Any) -> np.ndarray:
        """Wait for a device array, and return a copy of it on the host."""
        host: np.ndarray = cupy.asnumpy(array)
        return host

    def device_ids(self) -> tuple[str, ...]:
        """Return the devices' numbers; none if the driver is missing or too old."""
        try:
            return tuple(map(str, range(cupy.cuda.runtime.getDeviceCount())))
        except cupy.cuda.runtime.CUDARuntimeError:
            return ()

    def describe(self, device_id: str) -> str:
        """Return the driver's name of the device."""
        return str(cupy.cuda.runtime.getDeviceProperties(int(device_id))["name"].decode())

    def fingerprint(self, device_id: str) -> str:
        """Return the device's compute capability, and the versions of CuPy, CUDA and driver."""
        runtime = cupy.cuda.runtime
        return (
            f"sm_{cupy.cuda.Device(int(device_id)).compute_capability} cupy {cupy.__version__} "
            f"cuda {runtime.runtimeGetVersion()} driver {runtime.driverGetVersion()}"
        )

    def total_nbytes(self, device_id: str) -> int:
        """Return the size of the device's memory."""
        return int(cupy.cuda.Device(int(device_id)).mem_info[1])

    def used_nbytes(self, device_id: str) -> int:
        """Return the size of this process's arrays in CuPy's memory pool."""
        with cupy.cuda.Device(int(device_id)):
            return int(cupy.get_default_memory_pool().used_bytes())

    def limit_memory(self, device_id: str, nbytes: int) -> None:
        """Limit the size of CuPy's memory pool on a device; 0 removes the limit."""
        with cupy.cuda.Device(int(device_id)):
            cupy.get_default_memory_pool().set_limit(size=nbytes)

    @contextmanager
    def activate(self, device_id: str) -> Iterator[None]:
        """Make a device and this thread's stream there current in a `with` block."""
        streams = self._thread.__dict__.setdefault("streams", {})
        with cupy.cuda.Device(int(device_id)):
            if device_id not in streams:
                streams[device_id] = cupy.cuda.Stream(non_blocking=True)
            with streams[device_id]:
                yield

    def finish(self) -> None:
        """Wait for all work in the current stream."""
        cupy.cuda.get_current_stream().synchronize()
