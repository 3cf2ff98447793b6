"""The OV device's own properties; it has those of OpenVINO's devices as well."""

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
    Property("DEVICE_ID", str, "CPU", True, "Which of OpenVINO's devices."),
    Property(
        "OV_NARROW_INTEGERS",
        str,
        "NO",
        True,
        "Whether 64-bit integers are computed in 32 bits, as OpenVINO does. NO: where they are "
        "proven to fit; CHECKED: also where they fit if the model's inputs are small, which every "
        "request is checked for; YES: everywhere, unchecked.",
        choices=("NO", "CHECKED", "YES"),
        alone="CHECKED",
    ),
)
