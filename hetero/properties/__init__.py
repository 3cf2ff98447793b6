"""Property names with OpenVINO's Python API, such as ``hetero.properties.hint.num_requests()``.

Each is a string. Called without an argument it returns the name, called with a value it returns
the pair ``(name, value)``. ``core.get_property("CPU", "SUPPORTED_PROPERTIES")`` lists the
properties of a device.
"""

from enum import StrEnum
from typing import Final

from hetero.properties import device, hint, log, streams
from hetero.properties.property_name import PropertyName

__all__ = [
    "CacheMode",
    "CompatibilityCheck",
    "PropertyName",
    "WorkloadType",
    "device",
    "hint",
    "log",
    "streams",
]


class CacheMode(StrEnum):
    """Values of CACHE_MODE."""

    OPTIMIZE_SIZE = "OPTIMIZE_SIZE"
    OPTIMIZE_SPEED = "OPTIMIZE_SPEED"


class CompatibilityCheck(StrEnum):
    """Values of COMPATIBILITY_CHECK."""

    NOT_APPLICABLE = "NOT_APPLICABLE"
    SUPPORTED = "SUPPORTED"
    UNSUPPORTED = "UNSUPPORTED"


class WorkloadType(StrEnum):
    """Values of WORKLOAD_TYPE."""

    DEFAULT = "DEFAULT"
    EFFICIENT = "EFFICIENT"


auto_batch_timeout: Final = PropertyName("AUTO_BATCH_TIMEOUT", int)
available_devices: Final = PropertyName("AVAILABLE_DEVICES")
cache_dir: Final = PropertyName("CACHE_DIR", str)
cache_encryption_callbacks: Final = PropertyName("CACHE_ENCRYPTION_CALLBACKS", list, tuple)
cache_mode: Final = PropertyName("CACHE_MODE", str)
compatibility_check: Final = PropertyName("COMPATIBILITY_CHECK")
compilation_num_threads: Final = PropertyName("COMPILATION_NUM_THREADS", int)
enable_mmap: Final = PropertyName("ENABLE_MMAP", bool, int)
enable_profiling: Final = PropertyName("PERF_COUNT", bool, int)
enable_weightless: Final = PropertyName("ENABLE_WEIGHTLESS", bool, int)
execution_devices: Final = PropertyName("EXECUTION_DEVICES")
force_tbb_terminate: Final = PropertyName("FORCE_TBB_TERMINATE", bool, int)
inference_num_threads: Final = PropertyName("INFERENCE_NUM_THREADS", int)
key_cache_group_size: Final = PropertyName("KEY_CACHE_GROUP_SIZE", int)
key_cache_precision: Final = PropertyName("KEY_CACHE_PRECISION", str)
loaded_from_cache: Final = PropertyName("LOADED_FROM_CACHE")
max_batch_size: Final = PropertyName("MAX_BATCH_SIZE")
model_name: Final = PropertyName("NETWORK_NAME")
num_streams: Final = PropertyName("NUM_STREAMS", int, str)
optimal_batch_size: Final = PropertyName("OPTIMAL_BATCH_SIZE")
optimal_number_of_infer_requests: Final = PropertyName("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
range_for_async_infer_requests: Final = PropertyName("RANGE_FOR_ASYNC_INFER_REQUESTS")
range_for_streams: Final = PropertyName("RANGE_FOR_STREAMS")
runtime_requirements: Final = PropertyName("RUNTIME_REQUIREMENTS")
supported_properties: Final = PropertyName("SUPPORTED_PROPERTIES")
value_cache_group_size: Final = PropertyName("VALUE_CACHE_GROUP_SIZE", int)
value_cache_precision: Final = PropertyName("VALUE_CACHE_PRECISION", str)
weights_path: Final = PropertyName("WEIGHTS_PATH", str)
workload_type: Final = PropertyName("WORKLOAD_TYPE", str)
