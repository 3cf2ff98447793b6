"""A plugin with two devices of different properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hetero.devices import COMMON_PROPERTIES, Property, PropertyTable
from hetero.examples.third_party_plugin import DensePlugin

MEMORY = {"left": 4_000, "right": 1_000}


class PairPlugin(DensePlugin):
    """Two unlike devices."""

    name: ClassVar[str] = "PAIR"
    properties: ClassVar[PropertyTable] = COMMON_PROPERTIES.extended(
        Property("DEVICE_TOTAL_MEM_SIZE", int, 0, False, "Bytes of memory.")
    )

    def device_ids(self) -> tuple[str, ...]:
        return tuple(MEMORY)

    def full_name(self, device_id: str) -> str:
        return f"the {device_id} one"

    def fingerprint(self, device_id: str) -> str:
        return f"chip-{device_id}"

    def device_properties(self, device_id: str) -> Mapping[str, Any]:
        return {
            "DEVICE_TOTAL_MEM_SIZE": MEMORY[device_id],
            "DEVICE_TYPE": "DISCRETE" if device_id == "right" else "INTEGRATED",
        }
