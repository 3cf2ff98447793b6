"""Compile requests: the devices, options and pins of a query, plan or compilation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hetero.affinity.affinity import Affinity
from hetero.devices.errors import DeviceError
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.device_names import split_name
from hetero.scheduler.types.limits import Limits

Policy = Literal["PRIORITY", "PIPELINE_PARALLEL", "AUTO"]


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """Devices, options and pins for one model."""

    #: The devices, in order of priority.
    descriptors: tuple[DeviceDescriptor, ...]
    #: HETERO's options, including defaults.
    hetero_config: Mapping[str, Any]
    #: Device name -> its options, without defaults.
    configs: Mapping[str, Mapping[str, Any]]
    #: Devices that the user assigned to nodes.
    pins: Affinity
    #: Device -> the further devices that run its subgraphs; `devices` does not contain them.
    replicas: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices' names, in order of priority."""
        return tuple(device.name for device in self.descriptors)

    @property
    def all_devices(self) -> tuple[str, ...]:
        """The devices' names, followed by those of their replicas."""
        return (*self.devices, *(d for others in self.replicas.values() for d in others))

    def descriptor(self, name: str) -> DeviceDescriptor:
        """Return the descriptor of one of the devices."""
        return next(device for device in self.descriptors if device.name == name)

    @property
    def policy(self) -> Policy:
        """The distribution policy: the option, or a default that depends on the hint."""
        policy: Policy = self.hetero_config["MODEL_DISTRIBUTION_POLICY"] or (
            "AUTO" if self.hetero_config["PERFORMANCE_HINT"] else "PRIORITY"
        )
        return policy

    @property
    def batch_size(self) -> int:
        """The maximum batch size of dynamic batching; less than 2 without it."""
        return int(
            self.hetero_config["AUTO_BATCH_SIZE"]
            if self.hetero_config["ALLOW_AUTO_BATCHING"]
            else 0
        )

    @property
    def limits(self) -> Limits:
        """The limits of a deployment's queues; 0 requests stands for the optimal number."""
        return Limits(
            self.hetero_config["MAX_REQUESTS_IN_FLIGHT"],
            self.hetero_config["MAX_BYTES_IN_FLIGHT"],
            self.hetero_config["MAX_REQUESTS_WAITING"],
            self.hetero_config["REQUEST_TIMEOUT_S"],
            admission_timeout_s=self.hetero_config["ADMISSION_TIMEOUT_S"],
            attempts=self.hetero_config["MAX_ATTEMPTS"],
            in_order=self.hetero_config["PRESERVE_ORDER"],
            stage_timeout_s=self.hetero_config["STAGE_TIMEOUT_S"],
            requests_overlap=self.hetero_config["PERFORMANCE_HINT"] != "LATENCY",
        )

    def with_options(self, **options: Any) -> CompileRequest:
        """Return the request with other values of HETERO's options."""
        return replace(self, hetero_config={**self.hetero_config, **options})

    def for_devices(self, devices: tuple[str, ...]) -> CompileRequest:
        """Return the request for some of its devices; pins move to devices of the same plugin.

        Raises DeviceError: nodes are pinned to a device without another of its plugin.
        """
        replacements: dict[str, str] = {}
        for index, device in enumerate(self.devices):
            if device in devices or device not in self.pins.values():
                continue
            plugin, _ = split_name(device)
            candidates = [other for other in devices if split_name(other)[0] == plugin]
            if not candidates:
                raise DeviceError(
                    f"nodes are pinned to {device}, but {', '.join(devices)} contains no other "
                    f"device of plugin {plugin}."
                )
            replacements[device] = candidates[index % len(candidates)]
        return replace(
            self.with_moved_pins(replacements),
            descriptors=tuple(device for device in self.descriptors if device.name in devices),
        )

    def with_moved_pins(self, replacements: Mapping[str, str]) -> CompileRequest:
        """Return the request with pins to some devices moved: device -> its replacement."""
        pins = {n: replacements.get(device, device) for n, device in self.pins.devices.items()}
        return replace(self, pins=Affinity(pins, self.pins.reasons))
