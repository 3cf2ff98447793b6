"""What a model is queried, planned or compiled for, and with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from hetero.affinity.affinity import Affinity
from hetero.devices.errors import DeviceError
from hetero.scheduler.vocabulary.limits import Limits
from hetero.scheduler.vocabulary.names import split_name
from hetero.scheduler.vocabulary.rows import DeviceDescriptor

Policy = Literal["PRIORITY", "PIPELINE_PARALLEL", "AUTO"]


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """Devices, options and pins of one model."""

    #: The devices, the most preferred first.
    described: tuple[DeviceDescriptor, ...]
    #: HETERO's own options, defaults filled in.
    own: Mapping[str, Any]
    #: Device name -> its options, as given or set.
    configs: Mapping[str, Mapping[str, Any]]
    #: Nodes that the user placed.
    pins: Affinity

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices' names, the most preferred first."""
        return tuple(device.name for device in self.described)

    def descriptor(self, name: str) -> DeviceDescriptor:
        """Return one of the devices."""
        return next(device for device in self.described if device.name == name)

    @property
    def policy(self) -> Policy:
        """How nodes get their devices."""
        given: Policy = self.own["MODEL_DISTRIBUTION_POLICY"] or (
            "AUTO" if self.own["PERFORMANCE_HINT"] else "PRIORITY"
        )
        return given

    @property
    def batch_size(self) -> int:
        """How many rows are joined into one request; less than 2 where none are."""
        return int(self.own["AUTO_BATCH_SIZE"] if self.own["ALLOW_AUTO_BATCHING"] else 0)

    @property
    def limits(self) -> Limits:
        """The bounds of a deployment's queues; 0 requests: as many as are optimal."""
        return Limits(
            self.own["MAX_REQUESTS_IN_FLIGHT"],
            self.own["MAX_BYTES_IN_FLIGHT"],
            self.own["MAX_REQUESTS_WAITING"],
            self.own["REQUEST_TIMEOUT_S"],
            admission_timeout_s=self.own["ADMISSION_TIMEOUT_S"],
            attempts=self.own["MAX_ATTEMPTS"],
            in_order=self.own["PRESERVE_ORDER"],
            stage_timeout_s=self.own["STAGE_TIMEOUT_S"],
        )

    def with_own(self, **options: Any) -> CompileRequest:
        """Return the request with other values of HETERO's own options."""
        return replace(self, own={**self.own, **options})

    def on(self, devices: tuple[str, ...]) -> CompileRequest:
        """Return the request for some of its devices; pins move to devices of the same plugin."""
        stand_in: dict[str, str] = {}
        for place, device in enumerate(self.devices):
            if device in devices or device not in self.pins.values():
                continue
            plugin, _ = split_name(device)
            alike = [other for other in devices if split_name(other)[0] == plugin]
            if not alike:
                raise DeviceError(
                    f"nodes are pinned to {device}, and there is no other {plugin} in "
                    f"{', '.join(devices)}."
                )
            stand_in[device] = alike[place % len(alike)]
        return replace(
            self,
            described=tuple(device for device in self.described if device.name in devices),
            pins=Affinity(
                {node: stand_in.get(on, on) for node, on in self.pins.devices.items()},
                self.pins.reasons,
            ),
        )
