"""Import of blobs: mapping to available devices, options, and reuse of the stages' exports."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hetero.cache.blob import DeviceRecord, ModelBlob
from hetero.cache.check import StageCheck, reasons_by_stage
from hetero.devices.errors import ArgumentTypeError, BlobError, PropertyError, UnknownDeviceError
from hetero.devices.model.ov_any import plain
from hetero.devices.plugin.configuration import Configuration
from hetero.devices.plugin.program import Payload
from hetero.devices.plugin.properties import PropertyTable
from hetero.partition.partition import PlacedPartition
from hetero.properties.compile_request import CompileRequest
from hetero.properties.table import HETERO_PROPERTIES, NOT_EXPORTED
from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.formats.stored_payload import PAYLOADS, StoredPayload, read_payload
from hetero.scheduler.types.device_names import match_name

_log = logging.getLogger(__name__)

#: Reason for the compilation of a stage that the blob contains only as a model.
WITHOUT_EXPORT: Final = "its device has no exports"
#: Matches the names of options of ONNX Runtime's providers that refer to files.
_FILE_OPTION: Final = re.compile("path|dir|file|config|cache|dump|prefix", re.IGNORECASE)


def map_devices(
    blob: ModelBlob, available: Sequence[str], remap: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Map the devices of a blob to available devices.

    `remap`: device of the blob -> available device, from the user.
    Returns: device of the blob -> available device; devices without one are absent.
    Raises BlobError: `remap` names a device that the blob does not use.
    Raises UnknownDeviceError: the target of a `remap` is not available.
    """
    if not isinstance(remap or {}, Mapping):
        raise ArgumentTypeError(
            f"remap: expected a mapping, such as {{'ORT': 'CPU'}}; got {remap!r}."
        )
    blob_devices = blob.devices
    targets = {device: device for device in blob_devices}
    for old, new in (remap or {}).items():
        blob_device = match_name(old, blob_devices)
        if blob_device is None:
            raise BlobError(
                f"remap {old!r} to {new!r}: model {blob.name!r} was compiled for "
                f"{', '.join(blob_devices) or 'no device'}, not for {old!r}."
            )
        targets[blob_device] = new
    device_map = {old: match_name(new, available) for old, new in targets.items()}
    if missing := {o: new for o, new in targets.items() if device_map[o] is None and new != o}:
        raise missing_devices_error(blob, missing, available)
    return {old: new for old, new in device_map.items() if new is not None}


def missing_devices_error(
    blob: ModelBlob, missing: Mapping[str, str], available: Sequence[str]
) -> UnknownDeviceError:
    """Return the error for devices that are not available, with the ways to proceed.

    `missing`: device of the blob -> the unavailable device: the same, or that of `remap`.
    """
    old = next(iter(missing))
    return UnknownDeviceError(
        f"model {blob.name!r} was compiled for {', '.join(blob.devices)}; not available: "
        f"{', '.join(missing.values())}. Available devices: {', '.join(available)}. Replace a "
        f"device with remap={{{old!r}: 'CPU'}} (--remap {old}=CPU), or pass device_name (-d) to "
        "compile the model again.",
        device=missing[old],
        devices=tuple(missing.values()),
    )


def import_options(
    blob: ModelBlob,
    device_map: Mapping[str, str],
    caller_options: Mapping[str, Any],
    tables: Mapping[str, PropertyTable],
) -> dict[str, Any]:
    """Return the options of an import: the caller's take precedence over those of the blob."""
    all_options = _parse_options(blob, blob.head.options, HETERO_PROPERTIES)
    options = {n: v for n, v in all_options.items() if v != HETERO_PROPERTIES[n].default}
    if memory := options.get("DEVICE_MEMORY_NBYTES"):
        options["DEVICE_MEMORY_NBYTES"] = {
            device_map[old]: nbytes for old, nbytes in memory.items() if old in device_map
        }
    device_properties = dict(plain(caller_options.get("DEVICE_PROPERTIES", {})))
    for old, device in device_map.items():
        blob_options = _device_options(blob, old, tables[device])
        remaining = {n: v for n, v in blob_options.items() if n not in caller_options}
        device_properties[device] = remaining | device_properties.get(device, {})
    return {**options, **caller_options, "DEVICE_PROPERTIES": device_properties}


def recompilation_pins(blob: ModelBlob, device_map: Mapping[str, str]) -> dict[str, str]:
    """Return the pins for compiling a blob's model again: node name -> available device.

    These are the user's pins, and all nodes of remapped devices.
    """
    remapped = {old for old, new in device_map.items() if match_name(old, [new]) is None}
    if dropped := [n for n, device in blob.head.pins.items() if device not in device_map]:
        _log.warning("model=%s: dropped pins on unavailable devices: %s", blob.name, dropped)
    return {
        name: device_map[device]
        for name, device in blob.affinities[0].items()
        if device in device_map and (name in blob.head.pins or device in remapped)
    }


def import_sources(
    blob: ModelBlob, placements: Sequence[PlacedPartition], request: CompileRequest
) -> list[StageSource]:
    """Return the source of each stage of all placements, with its export if it is compatible."""
    checks = check_stages(blob, placements, request)
    path = blob.blob.real_path
    sources: list[StageSource] = []
    models = [model for placement in placements for model in blob.stage_models(placement)]
    for check, model in zip(checks, models, strict=True):
        payload = None if check.reason else _stage_payload(blob, check.index)
        stored = None
        if payload is not None and path is not None:
            stored = StoredPayload(path, blob.blob.digest, check.index)
        config = dict(request.configs[check.target])
        sources.append(StageSource(model, payload, config, stored))
    for (target, reason), indices in reasons_by_stage(checks).items():
        if reason != WITHOUT_EXPORT:
            record = DeviceRecord.of(request.descriptor(target))
            _log.warning(
                "model=%s stages=%s: compiling again for %s, %s: %s",
                blob.name,
                indices,
                target,
                _describe_record(record),
                reason,
            )
    return sources


def check_stages(
    blob: ModelBlob, placements: Sequence[PlacedPartition], request: CompileRequest
) -> list[StageCheck]:
    """Return for each stage of all placements whether its export is compatible."""
    #: (device of the blob, available device) -> reason why exports are incompatible, or empty.
    reasons: dict[tuple[str, str], str] = {}
    checks: list[StageCheck] = []
    for plan, placement in zip(blob.plans, placements, strict=True):
        for old_stage, new_stage in zip(plan.stages, placement.plan.stages, strict=True):
            devices = old_stage.device, new_stage.device
            if devices not in reasons:
                reasons[devices] = _why_incompatible(blob, *devices, request) or ""
            index = len(checks)
            reason = reasons[devices] if _has_export(blob, index) else WITHOUT_EXPORT
            checks.append(StageCheck(index, *devices, reason))
    return checks


def _has_export(blob: ModelBlob, stage: int) -> bool:
    payloads = blob.contents.get(PAYLOADS)
    return not (isinstance(payloads, list) and stage < len(payloads) and payloads[stage] is None)


def _why_incompatible(
    blob: ModelBlob, device: str, available_device: str, request: CompileRequest
) -> str | None:
    """Return why an available device cannot use the exports of a blob's device, or None."""
    descriptor = request.descriptor(available_device)
    old_record, new_record = blob.head.devices[device], DeviceRecord.of(descriptor)
    if old_record != new_record:
        return f"exported by {_describe_record(old_record)}"
    table = descriptor.properties
    old_options = table.key(_device_options(blob, device, table))
    new_options = table.key(request.configs[available_device])
    changed = [n for n in table.caching_properties if old_options.get(n) != new_options.get(n)]
    return f"with other {', '.join(changed)}" if changed else None


def _describe_record(record: DeviceRecord) -> str:
    return f"{record.plugin} {record.version} ({record.fingerprint})"


def _device_options(blob: ModelBlob, device: str, table: PropertyTable) -> dict[str, Any]:
    """Return the options of a blob's device that the available device has as well."""
    return _parse_options(blob, blob.head.device_options.get(device, {}), table)


def _parse_options(
    blob: ModelBlob, options: Mapping[str, Any], table: PropertyTable
) -> dict[str, Any]:
    """Return the known options of a blob, without those that blobs never contain.

    For security, options with file names are removed: a blob must not make this machine read or
    write files.
    """
    known_options = {
        name: {k: v for k, v in value.items() if not _FILE_OPTION.search(str(k))}
        if name == "PROVIDER_OPTIONS" and isinstance(value, Mapping)
        else value
        for name, value in options.items()
        if name in table and table[name].mutable and name not in NOT_EXPORTED
    }
    try:
        return Configuration(table, "options").parse(known_options)
    except PropertyError as error:
        raise BlobError(f"blob {blob.blob.path or ''}: {error}") from error


def _stage_payload(blob: ModelBlob, stage: int) -> Payload | None:
    return read_payload(blob.blob, stage, blob.contents) if _has_export(blob, stage) else None
