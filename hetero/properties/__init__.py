"""Names of properties as OpenVINO's scripts write them: ``hetero.properties.hint.num_requests()``.

Each is the property's name, and returns it when called; called with a value, a pair of both.
"""

from __future__ import annotations

from enum import StrEnum
from types import SimpleNamespace
from typing import Any, Final


class PropertyName(str):
    """A property's name that can be called."""

    __slots__ = ()

    def __call__(self, *value: Any) -> Any:
        """Return the name; with a value, the pair ``(name, value)``."""
        return (str(self), *value) if value else str(self)


class PerformanceMode(StrEnum):
    """Values of PERFORMANCE_HINT."""

    LATENCY = "LATENCY"
    THROUGHPUT = "THROUGHPUT"


available_devices: Final = PropertyName("AVAILABLE_DEVICES")
cache_dir: Final = PropertyName("CACHE_DIR")
cache_encryption_callbacks: Final = PropertyName("CACHE_ENCRYPTION_CALLBACKS")
enable_mmap: Final = PropertyName("ENABLE_MMAP")
enable_profiling: Final = PropertyName("PERF_COUNT")
execution_devices: Final = PropertyName("EXECUTION_DEVICES")
inference_num_threads: Final = PropertyName("INFERENCE_NUM_THREADS")
loaded_from_cache: Final = PropertyName("LOADED_FROM_CACHE")
model_name: Final = PropertyName("NETWORK_NAME")
num_streams: Final = PropertyName("NUM_STREAMS")
optimal_number_of_infer_requests: Final = PropertyName("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
range_for_async_infer_requests: Final = PropertyName("RANGE_FOR_ASYNC_INFER_REQUESTS")
supported_properties: Final = PropertyName("SUPPORTED_PROPERTIES")

#: Of plans and queues.
hint: Final = SimpleNamespace(
    PerformanceMode=PerformanceMode,
    model_distribution_policy=PropertyName("MODEL_DISTRIBUTION_POLICY"),
    num_requests=PropertyName("PERFORMANCE_HINT_NUM_REQUESTS"),
    performance_mode=PropertyName("PERFORMANCE_HINT"),
)
#: Of devices.
device: Final = SimpleNamespace(
    architecture=PropertyName("DEVICE_ARCHITECTURE"),
    capabilities=PropertyName("OPTIMIZATION_CAPABILITIES"),
    full_name=PropertyName("FULL_DEVICE_NAME"),
    id=PropertyName("DEVICE_ID"),
    priorities=PropertyName("MULTI_DEVICE_PRIORITIES"),
    properties=PropertyName("DEVICE_PROPERTIES"),
    type=PropertyName("DEVICE_TYPE"),
)
