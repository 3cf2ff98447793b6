"""CuPy's arrays on CUDA devices."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cupy
import numpy as np

from hetero.devices.gpu.backend import DeviceBackend


class CupyBackend(DeviceBackend):
    """CUDA devices by number, as the driver counts them."""

    def __init__(self) -> None:
        super().__init__("cupy", cupy)
        #: Of each thread, its streams by device: requests that run at once have streams of their
        #: own, and memory that one gave back is the same stream's again.
        self._own = threading.local()

    def to_device(self, array: np.ndarray) -> Any:
        """Return a copy of a host array on the current device."""
        return cupy.asarray(array)

    def to_host(self, array: Any) -> np.ndarray:
        """Return a copy of a device's array on the host, once it is computed."""
        host: np.ndarray = cupy.asnumpy(array)
        return host

    def device_ids(self) -> tuple[str, ...]:
        """Return the numbers of the devices; none where the driver is missing or too old."""
        try:
            return tuple(map(str, range(cupy.cuda.runtime.getDeviceCount())))
        except cupy.cuda.runtime.CUDARuntimeError:
            return ()

    def describe(self, device_id: str) -> str:
        """Return the device's name, as the driver says it."""
        return str(cupy.cuda.runtime.getDeviceProperties(int(device_id))["name"].decode())

    def fingerprint(self, device_id: str) -> str:
        """Return the device's compute capability, and the versions of CuPy, CUDA and driver."""
        runtime = cupy.cuda.runtime
        return (
            f"sm_{cupy.cuda.Device(int(device_id)).compute_capability} cupy {cupy.__version__} "
            f"cuda {runtime.runtimeGetVersion()} driver {runtime.driverGetVersion()}"
        )

    def total_nbytes(self, device_id: str) -> int:
        """Return how much memory the device has."""
        return int(cupy.cuda.Device(int(device_id)).mem_info[1])

    def used_nbytes(self, device_id: str) -> int:
        """Return how much of it this process's arrays take."""
        with cupy.cuda.Device(int(device_id)):
            return int(cupy.get_default_memory_pool().used_bytes())

    def bound_memory(self, device_id: str, nbytes: int) -> None:
        """Let this process's arrays take no more than `nbytes`; 0: all there is."""
        with cupy.cuda.Device(int(device_id)):
            cupy.get_default_memory_pool().set_limit(size=nbytes)

    @contextmanager
    def working_on(self, device_id: str) -> Iterator[None]:
        """While inside, compute on this device, in this thread's own stream there."""
        streams = self._own.__dict__.setdefault("streams", {})
        with cupy.cuda.Device(int(device_id)):
            if device_id not in streams:
                streams[device_id] = cupy.cuda.Stream(non_blocking=True)
            with streams[device_id]:
                yield

    def finish(self) -> None:
        """Return once everything in this thread's stream is done."""
        cupy.cuda.get_current_stream().synchronize()
