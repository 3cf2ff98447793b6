"""Compatibility check of a blob: whether it runs here, as it is or after recompilation."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hetero.properties import CompatibilityCheck
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.device_names import HETERO, match_name


@dataclass(frozen=True, slots=True)
class StageCheck:
    """Outcome for one stage of a blob.

    Attributes
    ----------
    index : int
        The stage's number in the blob.
    device : str
        The device that the stage was compiled for.
    target : str
        The available device that would run it.
    reason : str
        Why the stage is compiled again; empty if its export is usable.
    """

    index: int
    device: str
    target: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BlobCheck:
    """Result of `Core.check`.

    Attributes
    ----------
    name : str
        The model's name; empty if the file is not a blob.
    stages : tuple of StageCheck
        The outcome for each stage; empty if the blob is refused.
    refusal : str
        Why `Core.import_model` would raise, with the fix; empty if it would not.
    """

    name: str
    stages: tuple[StageCheck, ...] = ()
    refusal: str = ""

    @property
    def verdict(self) -> str:
        """``runs`` as it is, ``recompiles`` some stages, or is ``refused``."""
        if self.refusal:
            return "refused"
        return "recompiles" if self.recompiled else "runs"

    @property
    def recompiled(self) -> tuple[StageCheck, ...]:
        """The stages that an import would compile again."""
        return tuple(stage for stage in self.stages if stage.reason)

    def to_json(self) -> dict[str, Any]:
        """Return the result as values of JSON."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "refusal": self.refusal or None,
            "stages": [
                {
                    "index": stage.index,
                    "device": stage.device,
                    "target": stage.target,
                    "reason": stage.reason or None,
                }
                for stage in self.stages
            ],
        }

    def __str__(self) -> str:
        if self.refusal:
            return f"refused: {self.refusal}"
        devices = ", ".join(dict.fromkeys(stage.target for stage in self.stages))
        if not self.recompiled:
            return f"{self.name} runs as it is on {devices}."
        reasons = "; ".join(dict.fromkeys(stage.reason for stage in self.recompiled))
        stages = ", ".join(str(stage.index) for stage in self.recompiled)
        return (
            f"{self.name} runs on {devices} after recompilation of stages {stages} (of "
            f"{len(self.stages)}): {reasons}."
        )


def runtime_requirements(descriptors: Iterable[DeviceDescriptor]) -> str:
    """Return the devices that an export needs, as text: the property RUNTIME_REQUIREMENTS."""
    devices = {d.name: [d.plugin, d.version, d.fingerprint] for d in descriptors}
    return json.dumps({"devices": devices}, sort_keys=True)


def meets_requirements(
    requirements: object, device: str, descriptors: Iterable[DeviceDescriptor]
) -> CompatibilityCheck:
    """Return the property COMPATIBILITY_CHECK of a device, or of HETERO, for `requirements`.

    ``NOT_APPLICABLE`` if they are not those of a compiled model, or of other devices.
    """
    records = {d.name: [d.plugin, d.version, d.fingerprint] for d in descriptors}
    try:
        required = json.loads(requirements if isinstance(requirements, str) else "")["devices"]
        names = {name: match_name(name, records) for name in required}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return CompatibilityCheck.NOT_APPLICABLE
    if device != HETERO and set(names.values()) != {device}:
        return CompatibilityCheck.NOT_APPLICABLE
    usable = all(records.get(name or "") == required[old] for old, name in names.items())
    return CompatibilityCheck.SUPPORTED if usable else CompatibilityCheck.UNSUPPORTED


def reasons_by_stage(stages: Iterable[StageCheck]) -> dict[tuple[str, str], list[int]]:
    """Return (device, reason) -> indices of the stages that are compiled again."""
    indices: dict[tuple[str, str], list[int]] = {}
    for stage in stages:
        if stage.reason:
            indices.setdefault((stage.target, stage.reason), []).append(stage.index)
    return indices
