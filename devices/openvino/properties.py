"""The OV device's own properties; it has those of OpenVINO's devices as well."""

from __future__ import annotations

from typing import Final

from devices.plugin.properties import (
    COMMON_PROPERTIES,
    OPTIONAL_PROPERTIES,
    Property,
    PropertyTable,
)

OWN_PROPERTIES: Final[PropertyTable] = COMMON_PROPERTIES.extended(
    OPTIONAL_PROPERTIES["INFERENCE_NUM_THREADS"],
    Property("DEVICE_ID", str, "CPU", True, "Which of OpenVINO's devices."),
    Property(
        "OV_NARROW_INTEGERS", bool, False, True,
        "Whether 64-bit integers are computed in 32 bits, as OpenVINO does; else it gets no node "
        "that computes with them.",
    ),
)  # fmt: skip
