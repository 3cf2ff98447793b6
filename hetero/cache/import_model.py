"""Importing: which stages of a blob can be taken as they are, and what happens to the others."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hetero.cache.blob import DeviceRecord, ModelBlob
from hetero.devices.errors import ArgumentTypeError, BlobError, PropertyError, UnknownDeviceError
from hetero.devices.plugin.configuration import Configuration
from hetero.devices.plugin.program import Payload
from hetero.devices.plugin.properties import PropertyTable
from hetero.partition.partition import PlacedPartition
from hetero.properties.compile_request import CompileRequest
from hetero.properties.table import HETERO_PROPERTIES, NOT_EXPORTED
from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.formats.stored_payload import PAYLOADS, StoredPayload, read_payload
from hetero.scheduler.vocabulary.names import match_name

_log = logging.getLogger(__name__)

#: What the options of ONNX Runtime's providers have in their names where they name files.
_PLACE: Final = re.compile("path|dir|file|config|cache|dump|prefix", re.IGNORECASE)


def place_devices(
    blob: ModelBlob, available: Sequence[str], remap: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return which device here stands for each device of a blob's plan, where there is one."""
    if not isinstance(remap or {}, Mapping):
        raise ArgumentTypeError(f"remap={remap!r}: wanted a mapping, as {{'ORT': 'CPU'}}.")
    used = blob.used
    wanted = {device: device for device in used}
    for old, new in (remap or {}).items():
        found = match_name(old, used)
        if found is None:
            raise BlobError(
                f"remap {old!r} to {new!r}: model {blob.name!r} was compiled for "
                f"{', '.join(used) or 'no device'}, not for {old!r}."
            )
        wanted[found] = new
    placed = {old: match_name(new, available) for old, new in wanted.items()}
    if absent := {o: new for o, new in wanted.items() if placed[o] is None and new != o}:
        raise absent_devices(blob, absent, available)
    return {old: here for old, here in placed.items() if here is not None}


def absent_devices(
    blob: ModelBlob, absent: Mapping[str, str], available: Sequence[str]
) -> UnknownDeviceError:
    """Return the error that names all devices that are not here, and how to go on.

    `absent`: device of the blob -> the device wanted in its place, its own or another.
    """
    old = next(iter(absent))
    return UnknownDeviceError(
        f"model {blob.name!r} was compiled for {', '.join(blob.used)}; not here: "
        f"{', '.join(absent.values())}. Here are {', '.join(available)}. Replace it "
        f"with remap={{{old!r}: 'CPU'}} (--remap {old}=CPU), or name the devices to compile it "
        "for again.",
        device=absent[old],
        devices=tuple(absent.values()),
    )


def import_options(
    blob: ModelBlob,
    placed: Mapping[str, str],
    given: Mapping[str, Any],
    tables: Mapping[str, PropertyTable],
) -> dict[str, Any]:
    """Return the options of an import: those given, and the blob's own for the rest."""
    own = _parsed(blob, blob.head.options, HETERO_PROPERTIES)
    kept = {n: value for n, value in own.items() if value != HETERO_PROPERTIES[n].default}
    if memory := kept.get("DEVICE_MEMORY_NBYTES"):
        kept["DEVICE_MEMORY_NBYTES"] = {placed[d]: n for d, n in memory.items() if d in placed}
    devices = dict(given.get("DEVICE_PROPERTIES", {}))
    for old, here in placed.items():
        options = _kept_of(blob, old, tables[here])
        held = {name: value for name, value in options.items() if name not in given}
        devices[here] = held | devices.get(here, {})
    return {**kept, **given, "DEVICE_PROPERTIES": devices}


def recompiled_pins(blob: ModelBlob, placed: Mapping[str, str]) -> dict[str, str]:
    """Return the pins with which a blob's model is compiled again: node name -> device here.

    Those are what the user pinned, and all of a device that was remapped, where the device that
    they went to is here.
    """
    moved = {old for old, here in placed.items() if match_name(old, [here]) is None}
    if lost := [n for n, device in blob.head.pins.items() if device not in placed]:
        _log.warning("model=%s: pins on devices that are not here are gone: %s", blob.name, lost)
    return {
        name: placed[device]
        for name, device in blob.affinities[0].items()
        if device in placed and (name in blob.head.pins or device in moved)
    }


def import_sources(
    blob: ModelBlob, cuts: Sequence[PlacedPartition], request: CompileRequest
) -> list[StageSource]:
    """Return each stage's source, numbered through the cuts: with its own export, or without."""
    #: (device here, why its export cannot be used) -> stages, numbered through the plans.
    again: dict[tuple[str, str], list[int]] = {}
    path = blob.blob.real_path
    sources: list[StageSource] = []
    #: (device of the blob, device here) -> why the one's exports cannot be used, or None.
    unfit: dict[tuple[str, str], str | None] = {}
    for plan, cut in zip(blob.plans, cuts, strict=True):
        models = blob.stage_models(cut)
        for before, after, model in zip(plan.stages, cut.plan.stages, models, strict=True):
            index = len(sources)
            device = after.device
            payload = _payload(blob, index)
            pair = before.device, device
            if pair not in unfit:
                unfit[pair] = _unfit(blob, *pair, request)
            why = unfit[pair]
            if payload is not None and why is not None:
                now = DeviceRecord.of(request.descriptor(device))
                again.setdefault((f"{device}, {_text(now)}", why), []).append(index)
                payload = None
            stored = None
            if payload is not None and path is not None:
                stored = StoredPayload(path, blob.blob.digest, index)
            config = dict(request.configs[device])
            sources.append(StageSource(model, payload, config, stored))
    for (what, why), stages in again.items():
        _log.warning("model=%s stages=%s: compiled again for %s: %s", blob.name, stages, what, why)
    return sources


def _unfit(blob: ModelBlob, device: str, here: str, request: CompileRequest) -> str | None:
    """Return why the exports of a blob's device cannot be used by a device here, or None."""
    descriptor = request.descriptor(here)
    was, now = blob.head.devices[device], DeviceRecord.of(descriptor)
    if was != now:
        return f"made by {_text(was)}"
    table = descriptor.properties
    old, new = table.key(_kept_of(blob, device, table)), table.key(request.configs[here])
    changed = [n for n in table.shaping if old.get(n) != new.get(n)]
    return f"with other {', '.join(changed)}" if changed else None


def _text(record: DeviceRecord) -> str:
    return f"{record.plugin} {record.version} ({record.fingerprint})"


def _kept_of(blob: ModelBlob, device: str, table: PropertyTable) -> dict[str, Any]:
    """Return the options that a blob's device was compiled with, as far as they are known here."""
    return _parsed(blob, blob.head.device_options.get(device, {}), table)


def _parsed(blob: ModelBlob, options: Mapping[str, Any], table: PropertyTable) -> dict[str, Any]:
    """Return options that are known here, less those that no blob is written with.

    A blob names no file or folder that this machine would read, make or write for it.
    """
    known = {
        name: {k: v for k, v in value.items() if not _PLACE.search(str(k))}
        if name == "PROVIDER_OPTIONS" and isinstance(value, Mapping)
        else value
        for name, value in options.items()
        if name in table and table[name].mutable and name not in NOT_EXPORTED
    }
    try:
        return Configuration(table, "options").parse(known)
    except PropertyError as error:
        raise BlobError(f"blob {blob.blob.path or ''}: {error}") from error


def _payload(blob: ModelBlob, stage: int) -> Payload | None:
    documents = blob.contents.get(PAYLOADS)
    if isinstance(documents, list) and stage < len(documents) and documents[stage] is None:
        return None
    return read_payload(blob.blob, stage, blob.contents)
