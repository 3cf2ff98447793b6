"""Names of hints for devices and plans: ``hetero.properties.hint``."""

from enum import StrEnum
from typing import Final

from hetero.properties.property_name import PropertyName


class PerformanceMode(StrEnum):
    """Values of PERFORMANCE_HINT."""

    LATENCY = "LATENCY"
    THROUGHPUT = "THROUGHPUT"
    CUMULATIVE_THROUGHPUT = "CUMULATIVE_THROUGHPUT"


class Priority(StrEnum):
    """Values of MODEL_PRIORITY."""

    LOW = "LOW"
    MEDIUM = "MEDIUM"
    HIGH = "HIGH"
    DEFAULT = "MEDIUM"


class SchedulingCoreType(StrEnum):
    """Values of SCHEDULING_CORE_TYPE."""

    ANY_CORE = "ANY_CORE"
    PCORE_ONLY = "PCORE_ONLY"
    ECORE_ONLY = "ECORE_ONLY"


class ModelDistributionPolicy(StrEnum):
    """Values of MODEL_DISTRIBUTION_POLICY."""

    PRIORITY = "PRIORITY"
    PIPELINE_PARALLEL = "PIPELINE_PARALLEL"
    AUTO = "AUTO"
    TENSOR_PARALLEL = "TENSOR_PARALLEL"


class ExecutionMode(StrEnum):
    """Values of EXECUTION_MODE_HINT."""

    PERFORMANCE = "PERFORMANCE"
    ACCURACY = "ACCURACY"


activations_scale_factor: Final = PropertyName("ACTIVATIONS_SCALE_FACTOR", float, int)
#: A blob to import instead of compiling: `compile_model` gets a `Tensor`, bytes or a file.
compiled_blob: Final = PropertyName("COMPILED_BLOB", object)
#: The model of a blob that was exported without weights, for `import_model`.
model: Final = PropertyName("MODEL_PTR", object)
allow_auto_batching: Final = PropertyName("ALLOW_AUTO_BATCHING", bool)
dynamic_quantization_group_size: Final = PropertyName("DYNAMIC_QUANTIZATION_GROUP_SIZE", int)
enable_cpu_pinning: Final = PropertyName("ENABLE_CPU_PINNING", bool, int)
enable_cpu_reservation: Final = PropertyName("ENABLE_CPU_RESERVATION", bool, int)
enable_hyper_threading: Final = PropertyName("ENABLE_HYPER_THREADING", bool, int)
execution_mode: Final = PropertyName("EXECUTION_MODE_HINT", str)
inference_precision: Final = PropertyName("INFERENCE_PRECISION_HINT", str)
kv_cache_precision: Final = PropertyName("KV_CACHE_PRECISION", str)
model_distribution_policy: Final = PropertyName("MODEL_DISTRIBUTION_POLICY", str, set)
model_priority: Final = PropertyName("MODEL_PRIORITY", str)
num_requests: Final = PropertyName("PERFORMANCE_HINT_NUM_REQUESTS", int)
performance_mode: Final = PropertyName("PERFORMANCE_HINT", str)
scheduling_core_type: Final = PropertyName("SCHEDULING_CORE_TYPE", str)
