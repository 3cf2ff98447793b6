"""Properties of the OV device, in addition to those of OpenVINO's devices."""

from __future__ import annotations

from typing import Final

from hetero.devices.plugin.properties import (
    COMMON_PROPERTIES,
    OPTIONAL_PROPERTIES,
    Property,
    PropertyTable,
)

OWN_PROPERTIES: Final[PropertyTable] = COMMON_PROPERTIES.extended(
    OPTIONAL_PROPERTIES["INFERENCE_NUM_THREADS"],
    Property("DEVICE_ID", str, "CPU", True, "The OpenVINO device."),
    Property(
        "OV_NARROW_INTEGERS",
        str,
        "NO",
        True,
        "Where OpenVINO may compute 64-bit integers in 32 bits. NO: only where they provably fit. "
        "CHECKED: also where they fit if the model's inputs are small; each request is checked. "
        "YES: everywhere, without a check.",
        choices=("NO", "CHECKED", "YES"),
        sole_device_default="CHECKED",
    ),
)
