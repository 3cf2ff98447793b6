"""Names of device properties: ``hetero.properties.device``."""

from enum import StrEnum
from typing import Final

from hetero.properties.property_name import PropertyName


class Capability(StrEnum):
    """Elements of OPTIMIZATION_CAPABILITIES."""

    BF16 = "BF16"
    FP16 = "FP16"
    FP32 = "FP32"
    INT8 = "INT8"
    INT16 = "INT16"
    WINOGRAD = "WINOGRAD"
    BIN = "BIN"
    EXPORT_IMPORT = "EXPORT_IMPORT"


class Type(StrEnum):
    """Values of DEVICE_TYPE."""

    INTEGRATED = "INTEGRATED"
    DISCRETE = "DISCRETE"


architecture: Final = PropertyName("DEVICE_ARCHITECTURE")
capabilities: Final = PropertyName("OPTIMIZATION_CAPABILITIES")
full_name: Final = PropertyName("FULL_DEVICE_NAME")
gops: Final = PropertyName("DEVICE_GOPS")
id: Final = PropertyName("DEVICE_ID", str)  # noqa: A001 - OpenVINO's name
luid: Final = PropertyName("DEVICE_LUID")
priorities: Final = PropertyName("MULTI_DEVICE_PRIORITIES", str, list, tuple)
properties: Final = PropertyName("DEVICE_PROPERTIES", dict)
thermal: Final = PropertyName("DEVICE_THERMAL")
type: Final = PropertyName("DEVICE_TYPE")  # noqa: A001 - OpenVINO's name
uuid: Final = PropertyName("DEVICE_UUID")
