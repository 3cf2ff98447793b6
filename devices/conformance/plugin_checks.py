"""Checks of what only a plugin has: its name, devices, programs, payloads and memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hetero.devices.conformance.expectation import expect, expect_raises
from hetero.devices.conformance.plugin_subject import PluginSubject
from hetero.devices.conformance.query_checks import supported_samples
from hetero.devices.conformance.samples import samples
from hetero.devices.errors import HeteroError, UnknownDeviceError, UnsupportedOperationError
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.program import Payload
from hetero.devices.plugin.properties import COMMON_PROPERTIES
from hetero.devices.plugin.registry import RESERVED_NAMES


def check_name_can_be_part_of_a_device_name(plugin: Plugin) -> None:
    """Dots, colons and commas part names; some words mean ways of choosing devices."""
    expect(plugin.name and not set(plugin.name) & set(".:, "), f"name {plugin.name!r}")
    expect(plugin.name not in RESERVED_NAMES, f"name {plugin.name!r} is reserved")


def check_devices_are_described(plugin: Plugin) -> None:
    """Each id fits into a device name, and has a name and a fingerprint; the plugin a version."""
    ids = plugin.device_ids()
    expect(ids and len(set(ids)) == len(ids), f"device ids {ids} are none, or not distinct")
    expect(plugin.version(), "version() is empty: cached models could not be distinguished")
    for device_id in ids:
        parts = set(device_id) & set(":, ")
        expect(device_id and not parts, f"device id {device_id!r} is empty, or has one of ':, '")
        expect(plugin.full_name(device_id), f"device {device_id} has no full name")
        expect(plugin.fingerprint(device_id), f"device {device_id} has no fingerprint")
        expect(
            plugin.fingerprint(device_id) == plugin.fingerprint(device_id),
            f"device {device_id}: its fingerprint is another one at each call",
        )


def check_unknown_device_id_is_refused(plugin: Plugin) -> None:
    """An id that is not there is an error that lists those that are."""
    for absent in ("10", "110", "l0"):
        if absent not in plugin.device_ids():
            error = expect_raises(
                UnknownDeviceError,
                lambda i=absent: plugin.effective_config({"DEVICE_ID": i}),  # type: ignore[misc]
                f"DEVICE_ID {absent!r}",
            )
            expect(plugin.device_ids()[0] in str(error), "the error does not list the ids")


def check_properties_are_each_devices_own(plugin: Plugin) -> None:
    """What depends on the device is asked with its id; an id that is not there is an error."""
    for device_id in plugin.device_ids():
        for name, want in (
            ("DEVICE_ID", device_id),
            ("FULL_DEVICE_NAME", plugin.full_name(device_id)),
            *plugin.device_properties(device_id).items(),
        ):
            got = plugin.get_property(name, device_id)
            expect(got == want, f"{name} of device {device_id} is {got!r}, not {want!r}")
    expect_raises(
        UnknownDeviceError, lambda: plugin.get_property("FULL_DEVICE_NAME", "l0"), "device id l0"
    )


def check_query_names_the_device(plugin: Plugin) -> None:
    """Answers carry the device id that was asked about."""
    for device_id in plugin.device_ids():
        want = f"{plugin.name}.{device_id}"
        for sample in samples():
            support = plugin.query_model(sample.model, {"DEVICE_ID": device_id})
            got = set(support.values()) | {d for r in support.unsupported.values() for d in r}
            expect(got <= {want}, f"{sample.name}: asked {want}, answered for {got}")


def check_foreign_payloads_are_refused(plugin: Plugin) -> None:
    """Empty, foreign and damaged payloads: a typed error."""
    sample = supported_samples(PluginSubject(plugin))[0]
    garbage = [Payload({}, {}), Payload({"format": "of another device"}, {"w": np.zeros(3)})]
    try:
        payload = plugin.compile_model(sample.model).export_model()
    except UnsupportedOperationError:
        pass
    else:
        for key in payload.header:
            damaged = {k: v for k, v in payload.header.items() if k != key}
            garbage.append(replace(payload, header=damaged))
    for payload in garbage:
        expect_raises(
            HeteroError,
            lambda p=payload: plugin.import_model(p, sample.model),  # type: ignore[misc]
            f"a payload with header {sorted(payload.header)}",
        )


def check_common_properties_are_there(plugin: Plugin) -> None:
    """Every device has the properties that users expect of each."""
    missing = set(COMMON_PROPERTIES) - set(plugin.properties)
    expect(not missing, f"properties that every device has are missing: {sorted(missing)}")
    for name in ("FULL_DEVICE_NAME", "AVAILABLE_DEVICES", "DEVICE_TYPE", "EXECUTION_DEVICES"):
        expect(plugin.get_property(name), f"{name} is empty")
